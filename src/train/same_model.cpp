// SPDX-License-Identifier: Apache-2.0
#include "train/same_model.hpp"

#include <string_view>

#include "llampi/core/error.hpp"

namespace llampi::train {
namespace {

std::string rope_scaling_text(const model::LlamaConfig& model) {
  if (!model.rope_scaling) return "none";
  const auto& r = *model.rope_scaling;
  return fmt::format("llama3 (factor {}, low_freq_factor {}, high_freq_factor {}, original length {})",
                     r.factor, r.low_freq_factor, r.high_freq_factor, r.original_max_position_embeddings);
}

/// "4096 in layers 2-3", "none".
std::string windows_text(const model::LlamaConfig& model) {
  std::string text;
  for (std::int64_t first = 0, end = 0; first < model.layers; first = end) {
    const std::int64_t window = model.window_of(first);
    while (end < model.layers && model.window_of(end) == window) ++end;
    if (window == 0) continue;
    text += fmt::format("{}{} in ", text.empty() ? "" : "; ", window);
    text += end - first == 1 ? fmt::format("layer {}", first) : fmt::format("layers {}-{}", first, end - 1);
  }
  return text.empty() ? "none" : text;
}

/// Throws where two models differ in a field.
struct Comparison {
  const std::string &run_source, &weights_source, &advice;

  template <class Value>
  void operator()(const char* field, const Value& here, const Value& there) const {
    if (here == there) return;
    throw_user_error("{} has {} = {}, but {} has {}; {}", run_source, field, here, weights_source, there,
                     advice);
  }
};

/// Parameters that some families have.
bool have_same_parameters(const model::Architecture& a, const model::Architecture& b) {
  return a.qkv_bias == b.qkv_bias && a.qk_norms == b.qk_norms;
}

}  // namespace

void check_same_shapes(const model::LlamaConfig& run, const std::string& run_source,
                       const model::LlamaConfig& weights, const std::string& weights_source,
                       const std::string& advice) {
  const Comparison differ{run_source, weights_source, advice};
  if (!have_same_parameters(run.family(), weights.family()))
    differ("model_type", std::string_view(run.family().model_type),
           std::string_view(weights.family().model_type));
  differ("vocab_size", run.vocab_size, weights.vocab_size);
  differ("hidden_size", run.hidden_size, weights.hidden_size);
  differ("intermediate_size", run.intermediate_size, weights.intermediate_size);
  differ("num_hidden_layers", run.layers, weights.layers);
  differ("num_attention_heads", run.query_heads, weights.query_heads);
  differ("num_key_value_heads", run.key_value_heads, weights.key_value_heads);
  differ("head_dim", run.head_dim, weights.head_dim);
  differ("tie_word_embeddings", run.tie_word_embeddings, weights.tie_word_embeddings);
}

void check_same_model(const model::LlamaConfig& run, const std::string& run_source,
                      const model::LlamaConfig& weights, const std::string& weights_source,
                      const std::string& advice) {
  check_same_shapes(run, run_source, weights, weights_source, advice);
  const Comparison differ{run_source, weights_source, advice};
  differ("rms_norm_eps", run.rms_norm_eps, weights.rms_norm_eps);
  differ("rope_theta", run.rope_theta, weights.rope_theta);
  differ("rope_scaling", rope_scaling_text(run), rope_scaling_text(weights));
  differ("sliding_window", windows_text(run), windows_text(weights));
}

}  // namespace llampi::train
