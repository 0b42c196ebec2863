// Conversations as the chat models of Llama 2 and Llama 3 saw them.
#pragma once

#include <cstdint>
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

enum class ChatTemplate : std::uint8_t {
  /// `<s>[INST] <<SYS>>\nsystem\n<</SYS>>\n\nuser [/INST] assistant </s><s>[INST] user [/INST] ...`
  llama2,
  /// `<|begin_of_text|>`, then `<|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>` for each
  /// message
  llama3,
};

/// "llama2", "llama3", or "auto": the one whose special tokens the tokenizer has.
/// @throws UserError if it has not got the template's tokens, or with "auto" those of neither
ChatTemplate choose_template(const Tokenizer& tokenizer, const std::string& name = "auto");

enum class ChatPurpose : std::uint8_t {
  training,    ///< what the messages are, and no more
  generation,  ///< up to where the assistant's next message begins; the last message is not his
};

struct EncodedChat {
  std::vector<std::int32_t> ids;
  /// As long as ids. 1: the assistant's content and the token that ends his turn, <|eot_id|> or </s>.
  std::vector<std::uint8_t> mask;
};

/// The ids that transformers' apply_chat_template gives with the template of Meta-Llama-3-8B-Instruct and
/// Llama-2-7b-chat-hf. Contents lose white space at both ends, as there. Names of special tokens in a content
/// are plain text: nobody ends his turn by writing "<|eot_id|>". (Llama 2's [INST] is plain text itself.)
/// Where a token holds both the last bytes before the assistant's content and its first, it counts as his.
/// @throws UserError for what the template cannot say: with llama2 user and assistant take turns after at
/// most one system message, which comes first
EncodedChat encode_chat(const Tokenizer& tokenizer, ChatTemplate chat_template,
                        const Conversation& conversation, ChatPurpose purpose = ChatPurpose::training);

/// A text without the white space at its ends, as the templates trim contents.
std::string_view strip(std::string_view text);

/// What ends the assistant's turn when he generates: the token of the template, and the tokenizer's end().
std::vector<std::int32_t> stop_tokens(const Tokenizer& tokenizer, ChatTemplate chat_template);

}  // namespace llampi
