// SPDX-License-Identifier: Apache-2.0
// Model FLOPs, as MFU counts them.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>

#include "llampi/device/gpu.hpp"
#include "llampi/fsdp/added_work.hpp"
#include "llampi/model/llama.hpp"
#include "unit/fsdp/shapes.hpp"

namespace llampi::test {
namespace {

constexpr std::int64_t kVocabulary = 128256;

/// Llama-3.2-1B, whose embedding is its head.
model::LlamaConfig small() {
  model::LlamaConfig config = shape_8b();
  config.hidden_size = 2048;
  config.intermediate_size = 8192;
  config.layers = 16;
  config.head_dim = 64;
  config.tie_word_embeddings = true;
  return config;
}

double flops(const model::LlamaConfig& config, std::int64_t seq_len, double labels = 1,
             const char* frozen = nullptr, const std::optional<model::LoraConfig>& lora = {}) {
  const auto model = model::make_llama(config, {}, lora);
  fsdp::EngineOptions options;
  options.batch = {2, seq_len};
  for (const auto& parameter : model->parameters()) {
    const bool is_base = lora && !parameter.adapter;
    const bool is_named = frozen != nullptr && parameter.name.find(frozen) != std::string::npos;
    options.parameter_groups.push_back({.frozen = is_base || is_named});
  }
  const auto compiled = fsdp::compile_model(*model, options, fsdp::make_device_mesh(options.strategy, {0}, 0),
                                            *device::make_gpu_sizes());
  return fsdp::flops_per_token(*model, options, compiled, labels);
}

TEST(FlopsPerToken, FollowTheFormula) {
  // All parameters but the input embedding and the 65 norms; 32 layers of 4096 channels attend to 8192 tokens.
  const double head = kVocabulary * 4096.0, matrices = 8'030'261'248.0 - head - 65.0 * 4096,
               attention = 6.0 * 32 * 4096 * 8192;
  EXPECT_EQ(flops(shape_8b(), 8192), 6 * matrices + attention);
  EXPECT_EQ(flops(small(), 100), 6 * (1'235'814'400.0 - 33.0 * 2048) + 6.0 * 16 * 2048 * 100);
  // What is left out: the head of tokens without a label, and gradients of frozen matrices.
  EXPECT_EQ(flops(shape_8b(), 8192, 0.25), 6 * (matrices - 0.75 * head) + attention);
  EXPECT_EQ(flops(shape_8b(), 8192, 1, "mlp"), 6 * matrices + attention - 2.0 * 32 * 3 * 4096 * 14336);
  const double adapters = 32.0 * 16 * ((4096 + 4096) + (4096 + 1024));  // of q_proj and v_proj
  EXPECT_EQ(flops(shape_8b(), 8192, 1, nullptr, model::LoraConfig{.rank = 16}),
            4 * matrices + attention + 6 * adapters);
}

}  // namespace
}  // namespace llampi::test
