// SPDX-License-Identifier: Apache-2.0
// A Hugging Face config.json; what is accepted can be written, and is then the same model.
#include <tuple>

#include "fuzz.hpp"
#include "llampi/model/llama.hpp"

namespace {

auto arithmetic_of(const llampi::model::LlamaConfig& c) {
  const auto rope = c.rope_scaling.value_or(llampi::model::Llama3Rope{});
  return std::tuple(c.vocab_size, c.hidden_size, c.intermediate_size, c.layers, c.query_heads,
                    c.key_value_heads, c.head_dim, c.max_position_embeddings, c.rms_norm_eps, c.rope_theta,
                    c.rope_scaling.has_value(), rope.factor, rope.low_freq_factor, rope.high_freq_factor,
                    rope.original_max_position_embeddings, c.tie_word_embeddings, c.initializer_range);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return llampi::fuzz::refuse_or_accept(data, size, [](std::string_view text) {
    const auto config = llampi::model::LlamaConfig::parse(std::string(text), "config.json");
    const auto written = llampi::model::config_text(config, llampi::DType::bfloat16);
    bool same = false;
    try {
      same = arithmetic_of(llampi::model::LlamaConfig::parse(written, "written")) == arithmetic_of(config);
    } catch (const llampi::UserError&) {  // refused is not the same
    }
    llampi::fuzz::expect(same, "what is exported is the same model");
  });
}
