// SPDX-License-Identifier: Apache-2.0
// Which tokenizer and which chat template belong to a model.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace llampi::infer {

/// How a model reads and writes text.
struct TextOptions {
  /// As make_tokenizer() takes it. Empty: that of the weights' folder, or else of the first of `folders` that
  /// holds one, or else bytes, if the model has just 256 tokens.
  std::string tokenizer;
  std::vector<std::filesystem::path> folders;
  /// PEFT's folder or a checkpoint of adapters, which are merged into the weights; empty: none
  std::filesystem::path adapter = {};
  std::string chat_template = "auto";  ///< or one of template_names()
  std::string template_date = "auto";  ///< of templates that write one
};

}  // namespace llampi::infer
