// Conversations as chat models see them: the templates that are known, and what they make of a conversation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llampi/data/tokenizer.hpp"

namespace llampi {

enum class ChatRole : std::uint8_t { system, user, assistant };

struct Message {
  ChatRole role = ChatRole::user;
  std::string content;
  bool trained = true;  ///< of the assistant's: whether it is to be learnt
};

using Conversation = std::vector<Message>;

/// How conversations are written. BOS and EOS are the tokenizer's bos_token and eos_token.
enum class ChatFormat : std::uint8_t {
  /// `BOS[INST] <<SYS>>\nsystem\n<</SYS>>\n\nuser [/INST] assistant EOS BOS[INST] user [/INST] ...`
  llama2,
  /// `BOS`, then `<|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>` for each message
  llama3,
  /// As llama3; a system message with the knowledge cutoff and today's date is always there.
  llama3_1,
  /// `<|im_start|>role\ncontent<|im_end|>\n` for each message
  chatml,
  /// `BOS`, then `[INST] user [/INST]assistantEOS ` for each turn; no system message
  mistral_v0_1,
  /// Without the space behind EOS.
  mistral_v0_2,
  /// `BOS`, then ` [INST] user [/INST] assistantEOS` for each turn; the system message before the first
  /// user's
  mistral_v1,
  /// `BOS`, then `[INST] user[/INST] assistantEOS` for each turn; the system message before the last user's
  mistral_v3,
  /// `<|role|>\ncontentEOS\n` for each message
  zephyr,
};

struct ChatTemplate {
  ChatFormat format = ChatFormat::llama3;
  std::string name = "llama3";  ///< as choose_template() takes it
  std::string date = {};        ///< llama3_1: that the system message says is today
  std::string default_system =
      {};                 ///< chatml: of conversations that begin without a system message; empty: none
  std::string text = {};  ///< Jinja, from which apply_chat_template of transformers makes the same
};

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

enum class ChatPurpose : std::uint8_t {
  training,    ///< what the messages are, and no more
  generation,  ///< up to where the assistant's next message begins; the last message is not his
};

struct EncodedChat {
  std::vector<std::int32_t> ids;
  /// As long as ids. 1: the assistant's content and the token that ends his turn, <|eot_id|> or EOS for
  /// example.
  std::vector<std::uint8_t> mask;
};

/// The ids that transformers' apply_chat_template gives with the template. Names of special tokens in a
/// content are plain text: nobody ends his turn by writing "<|eot_id|>". (Llama 2's [INST] is plain text
/// itself.) Where a token holds both the last bytes before the assistant's content and its first, it counts
/// as his.
/// @throws UserError for what the template cannot say: with llama2 and those of Mistral user and assistant
/// take turns after at most one system message, which comes first
EncodedChat encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                        const Conversation& conversation, ChatPurpose purpose = ChatPurpose::training);

/// A text without the white space at its ends, as the templates trim contents.
std::string_view strip(std::string_view text);

/// What ends the assistant's turn when he generates: the token of the template, and the tokenizer's end().
std::vector<std::int32_t> stop_tokens(const Tokenizer& tokenizer, const ChatTemplate& chat_template);

}  // namespace llampi
