// SPDX-License-Identifier: Apache-2.0
// Conversations as chat models see them: the templates that are known, and what they make of a conversation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llampi/tokenizer/chat_types.hpp"
#include "llampi/tokenizer/tokenizer.hpp"

namespace llampi::tokenizer {

/// What choose_template() takes: "llama2", "llama3", ..., without "auto".
std::vector<std::string> template_names();

struct TemplateChoice {
  std::string name = "auto";  ///< auto: the template of `trained_with`, else that of the tokenizer's folder
  std::string date = "auto";  ///< of templates that have one: "26 Jul 2024". auto: what the template says
  std::string today = {};     ///< where the template says today's date; empty: asked of the clock
  ChatTemplateText trained_with = {};  ///< of a checkpoint; empty: none is known
};

/// @throws UserError if a template is not known, if there is none, or if the tokenizer lacks its tokens
ChatTemplate choose_template(const Tokenizer& tokenizer, const TemplateChoice& choice = {});

/// Today as a template writes it, by the local clock: "26 Jul 2024".
std::string date_of_today();

/// The known template that renders as this Jinja text does; nothing if it is not one of the published texts
/// (docs/formats.md) or of those that choose_template() gives. How it is laid out does not matter.
/// `date` is empty where the text asks for today's.
std::optional<ChatTemplate> recognise_template(const std::string& text);

/// The ids that transformers' apply_chat_template gives with the template and a tokenizer that follows the file (PreTrainedTokenizerFast;
/// class_that_overrides() names those that do not). Names of special tokens in a
/// content are plain text: users cannot end their turn by writing "<|eot_id|>". (Llama 2's [INST] is plain text
/// itself.) A token that contains both the last bytes before the assistant's content and its first counts
/// as the assistant's.
/// @throws UserError for what the template cannot say: with llama2 and those of Mistral user and assistant
/// take turns after at most one system message, which comes first; only qwen3 writes Message::reasoning
EncodedChat encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                        const Conversation& conversation, ChatPurpose purpose = ChatPurpose::training);

/// A text without the white space at its ends, as the templates trim contents.
std::string_view strip(std::string_view text);

/// What the assistant says without its thoughts: with qwen3, what follows the last `</think>` and line ends.
std::string_view without_thoughts(const ChatTemplate& chat_template, std::string_view text);

/// Whether an answer breaks off in its thoughts, which have begun and not ended.
bool ends_in_thoughts(const ChatTemplate& chat_template, std::string_view text);

/// What ends the assistant's turn when he generates: the token of the template, and the tokenizer's end().
std::vector<std::int32_t> stop_tokens(const Tokenizer& tokenizer, const ChatTemplate& chat_template);

}  // namespace llampi::tokenizer
