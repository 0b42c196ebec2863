// SPDX-License-Identifier: Apache-2.0
// A Llama, or a dense model of the same build, as a Hugging Face config.json describes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "llampi/core/tensor.hpp"

namespace llampi::model {

/// rope_scaling of type "llama3" (Llama 3.1): as in transformers' _compute_llama3_parameters.
struct Llama3Rope {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_max_position_embeddings = 8192;
};

/// In what a family differs from Llama; a row of the table in llama_config.cpp.
struct Architecture {
  const char* model_type;  ///< of config.json: "llama"
  const char* prefix;      ///< of transformers' classes: "Llama", as in LlamaForCausalLM, LlamaDecoderLayer
  std::int64_t max_position_embeddings = 2048;  ///< transformers' default
  bool qkv_bias = false;                        ///< q, k and v projections have a bias
  bool qk_norms = false;                        ///< query and key heads have an RMSNorm each, before RoPE
  std::int64_t key_value_heads = 0;             ///< transformers' default; 0: as many as query heads
  std::int64_t head_dim = 0;                    ///< likewise; 0: hidden_size / num_attention_heads
  std::int64_t window = 0;                      ///< of a file without sliding_window; 0: none
  /// The window is used with use_sliding_window only, in the layers from max_window_layers on; else in all, if it is given.
  bool window_by_layer = false;
};

/// All families; a Llama is the first.
std::span<const Architecture> architectures();

struct LlamaConfig {
  const Architecture* architecture =
      nullptr;  ///< in the table, which lives as long as the program; null: Llama
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
  std::vector<std::int64_t> windows;  ///< sliding window of each layer, 0: none; empty: none has one
  std::string json;                   ///< the text it was read from, kept for checkpoints

  /// @param json text of config.json (fields of transformers 4 and 5)
  /// @param source named in errors
  /// @throws UserError for malformed JSON, missing or inconsistent fields, and settings that are not
  /// supported (other families, biases and activations, other RoPE scalings, ...), each by name
  static LlamaConfig parse(const std::string& json, const std::string& source);
  /// config.json itself or the folder that holds it.
  static LlamaConfig read(const std::filesystem::path& path);

  const Architecture& family() const;
  std::int64_t window_of(std::int64_t layer) const {
    return windows.empty() ? 0 : windows[static_cast<std::size_t>(layer)];
  }
};

/// config.json of a folder whose weights are `dtype`: the text it was read from, with what transformers needs
/// to load it (model_type, architectures), the dtype and RoPE under the names of its versions 4 and 5.
std::string config_text(const LlamaConfig& config, DType dtype);

}  // namespace llampi::model
