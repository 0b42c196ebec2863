// SPDX-License-Identifier: Apache-2.0
// Which parameters a model with low-rank adapters has, and what is refused; the arithmetic is in oracle_test.cpp.
#include <gmock/gmock.h>

#include "llampi/core/config_error.hpp"
#include "llampi/device/device.hpp"
#include "llampi/model/llama.hpp"

namespace llampi::test {
namespace {

using namespace model;

LlamaConfig adapted_llama() {
  LlamaConfig config;
  config.vocab_size = 50, config.hidden_size = 16, config.intermediate_size = 24, config.layers = 2;
  config.query_heads = 2, config.key_value_heads = 1, config.head_dim = 8,
  config.max_position_embeddings = 32;
  return config;
}

LoraConfig lora(const std::string& targets) {
  LoraConfig config;
  config.rank = 2;
  config.targets = targets;
  return config;
}

std::vector<std::string> adapter_names(const LoraConfig& config) {
  std::vector<std::string> names;
  const auto model = make_llama(adapted_llama(), {}, config);
  for (const auto& parameter : model->parameters()) {
    if (parameter.adapter) names.push_back(parameter.name);
  }
  return names;
}

std::string refusal(const LoraConfig& config) {
  try {
    make_llama(adapted_llama(), {}, config);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(Adapters, StandBesideTheLinearMapsThatTheExpressionFinds) {
  EXPECT_THAT(adapter_names(lora("layers\\.1\\..*(q|up)_proj")),
              ::testing::ElementsAre("model.layers.1.self_attn.q_proj.lora_A.weight",
                                     "model.layers.1.self_attn.q_proj.lora_B.weight",
                                     "model.layers.1.mlp.up_proj.lora_A.weight",
                                     "model.layers.1.mlp.up_proj.lora_B.weight"));
  EXPECT_EQ(adapter_names(lora("proj")).size(), 2U * 7 * 2);
  EXPECT_EQ(adapter_names(lora(LoraConfig::kDefaultTargets)).size(), 2U * 2 * 2);
}

// Frozen weights have no gradients, which alone would read what goes into their products.
TEST(Adapters, NothingIsKeptForFrozenWeights) {
  const auto kept = [](const std::string& targets) {
    const auto model = make_llama(adapted_llama(), {}, lora(targets));
    const auto sizes = device::make_cpu_sizes(1);
    std::vector<std::string> names;
    for (const std::size_t layer : {1, 2}) {  // attention and feed-forward of the first block
      for (const auto& saved : model->layers()[layer]->spec({2, 8}, DType::float32, *sizes).saved) {
        if (saved.bytes() > 0) names.push_back(saved.name);
      }
    }
    return names;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(kept("(q|v)_proj"),
              ElementsAre("normed", "inverse_rms", "qkv", "heads", "log_sum_exp", "q_proj.low_rank",
                          "v_proj.low_rank", "inverse_rms", "gate_up"));
  EXPECT_THAT(kept("down_proj"), ElementsAre("inverse_rms", "qkv", "heads", "log_sum_exp", "inverse_rms",
                                             "gate_up", "activated", "down_proj.low_rank"));
  EXPECT_THAT(kept("o_proj|gate_proj"),
              ElementsAre("inverse_rms", "qkv", "heads", "log_sum_exp", "o_proj.low_rank", "normed",
                          "inverse_rms", "gate_up", "gate_proj.low_rank"));
}

TEST(Adapters, CanBeGivenByName) {
  LoraConfig config = lora("k_proj");
  config.modules = {"model.layers.0.mlp.down_proj"};
  EXPECT_EQ(adapter_names(config).size(), 2U);
  config.modules = {"model.layers.2.mlp.down_proj"};
  EXPECT_THAT(refusal(config), ::testing::HasSubstr("an adapter of model.layers.2.mlp.down_proj"));
}

TEST(Adapters, OfOtherModulesOrOfNoneAreRefused) {
  EXPECT_THAT(refusal(lora("lm_head|q_proj")), ::testing::HasSubstr("lm_head"));
  EXPECT_THAT(refusal(lora("embed_tokens")), ::testing::HasSubstr("embed_tokens"));
  EXPECT_THAT(refusal(lora("query")), ::testing::HasSubstr("matches no linear layer"));
  EXPECT_THAT(refusal(lora("(")), ::testing::HasSubstr("not a regular expression"));
}

TEST(Adapters, NeedARankAndADropoutThatCanBe) {
  LoraConfig config = lora("proj");
  config.rank = 0;
  EXPECT_THAT(refusal(config), ::testing::HasSubstr("less than 1"));
  config.rank = 17;
  EXPECT_THAT(refusal(config), ::testing::HasSubstr("more than the 16 columns"));
  config.rank = 2;
  config.dropout = 1;
  EXPECT_THAT(refusal(config), ::testing::HasSubstr("not in [0, 1)"));
}

TEST(Adapters, AreScaledAsPeftDoes) {
  LoraConfig config = lora("proj");
  config.rank = 16, config.alpha = 32;
  EXPECT_EQ(config.scale(), 2);
  config.scaling = LoraScaling::rslora;
  EXPECT_EQ(config.scale(), 8);
}

}  // namespace
}  // namespace llampi::test
