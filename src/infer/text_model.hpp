// SPDX-License-Identifier: Apache-2.0
// A model with the tokenizer and the chat template that belong to it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "llampi/infer/text_options.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/tokenizer/chat.hpp"
#include "llampi/tokenizer/tokenizer.hpp"

namespace llampi::infer {

struct TextModel {
  std::filesystem::path weights;
  model::LlamaConfig config;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  tokenizer::ChatTemplate chat_template = {};  ///< of conversations
  std::vector<std::int32_t> nameless;          ///< ids of the model that are no tokens of the tokenizer
  std::vector<std::int32_t> end_ids;           ///< that the files of model and tokenizer say end a text

  /// @param chat whether conversations are to be encoded
  /// @param today as choose_template() takes it, the same on all ranks
  /// @throws UserError if there is no tokenizer, or none for conversations
  static TextModel open(const std::filesystem::path& weights, const TextOptions& options, bool chat,
                        const std::string& today);

  /// The ids of a text that a document begins with.
  std::vector<std::int32_t> encode(const std::string& text) const;
  /// The ids of a conversation up to where the assistant's answer begins.
  std::vector<std::int32_t> encode(const tokenizer::Conversation& conversation) const;
  /// What ends a text, or an answer.
  std::vector<std::int32_t> stop_tokens(bool chat) const;
  /// @param what the tokens are, for messages: "--stop"
  /// @throws UserError if one of `tokens` is not one of the model's
  void require_known(const std::vector<std::int32_t>& tokens, const std::string& what) const;
  /// Tokens that may stand behind `tokens`, at most `wanted`.
  /// @param what the tokens are, for messages: "--prompt"
  /// @throws UserError if none may, or if one of `tokens` is none of the model's
  std::int64_t room(const std::vector<std::int32_t>& tokens, std::int64_t wanted,
                    const std::string& what) const;
  /// Takes from the logits what the tokenizer cannot write.
  void forbid_nameless(std::vector<double>& logits) const;
};

}  // namespace llampi::infer
