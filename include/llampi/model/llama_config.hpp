// SPDX-License-Identifier: Apache-2.0
// A Llama as a Hugging Face config.json describes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "llampi/core/tensor.hpp"

namespace llampi::model {

/// rope_scaling of type "llama3" (Llama 3.1): as in transformers' _compute_llama3_parameters.
struct Llama3Rope {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_max_position_embeddings = 8192;
};

struct LlamaConfig {
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t layers = 0;
  std::int64_t query_heads = 0;
  std::int64_t key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  std::optional<Llama3Rope> rope_scaling;
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  std::string json;  ///< the text it was read from, kept for checkpoints

  /// @param json text of config.json (fields of transformers 4 and 5)
  /// @param source named in errors
  /// @throws UserError for malformed JSON, missing or inconsistent fields, and settings that are not
  /// supported (biases, other activations, other RoPE scalings, sliding windows, ...), each by name
  static LlamaConfig parse(const std::string& json, const std::string& source);
  /// config.json itself or the folder that holds it.
  static LlamaConfig read(const std::filesystem::path& path);
};

/// config.json of a folder whose weights are `dtype`: the text it was read from, with what transformers needs
/// to load it (model_type, architectures), the dtype and RoPE under the names of its versions 4 and 5.
std::string config_text(const LlamaConfig& config, DType dtype);

}  // namespace llampi::model
