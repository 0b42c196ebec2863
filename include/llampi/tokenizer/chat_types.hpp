// SPDX-License-Identifier: Apache-2.0
// Conversations, and what they become.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace llampi::tokenizer {

enum class ChatRole : std::uint8_t { system, user, assistant };

struct Message {
  ChatRole role = ChatRole::user;
  std::string content;
  bool trained = true;  ///< of the assistant's: whether to train on it
  /// Of the assistant's: the thoughts before the content, for qwen3. None: the content may begin with them, as
  /// `<think>...</think>`.
  std::optional<std::string> reasoning = {};
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
  /// As chatml; the answers after the last question have `<think>\nthoughts\n</think>\n\n` before them, the last of
  /// them also without thoughts; from earlier ones thoughts are taken away. A question is a user's message that is
  /// not all of `<tool_response>...</tool_response>`.
  qwen3,
  /// `BOS`, then `[INST] user [/INST]assistantEOS ` for each turn; no system message
  mistral_v0_1,
  /// Without the space behind EOS.
  mistral_v0_2,
  /// `BOS`, then ` [INST] user [/INST] assistantEOS` for each turn; the system message before the first
  /// user's
  mistral_v1,
  /// `BOS`, then `[INST] user[/INST] assistantEOS` for each turn; the system message before the last user's
  mistral_v3,
  /// The same, with answers whose white space around them is taken away.
  mistral_v3_trim,
  /// As mistral_v3 without spaces: `[INST]user[/INST]assistantEOS` for each turn
  mistral_v3_tekken,
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

}  // namespace llampi::tokenizer
