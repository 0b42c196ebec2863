// SPDX-License-Identifier: Apache-2.0
// The model as data: modules, parameters, what each layer uses, sizes of well-known models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "llampi/device/operation_sizes.hpp"
#include "llampi/model/llama.hpp"

namespace llampi::test {
namespace {

using namespace model;

using ::testing::ElementsAre;

LlamaConfig small(bool tied) {
  LlamaConfig config;
  config.vocab_size = 50;
  config.hidden_size = 12;
  config.intermediate_size = 20;
  config.layers = 2;
  config.query_heads = 4;
  config.key_value_heads = 2;
  config.head_dim = 6;
  config.rms_norm_eps = 1e-5;
  config.tie_word_embeddings = tied;
  config.initializer_range = 0.03;
  return config;
}

/// Each workspace has a size of its own, so that one taken for another is seen.
class FakeSizes : public device::OperationSizes {
 public:
  std::int64_t attention_workspace(device::AttentionShape, std::int64_t tokens, std::int64_t longest,
                                   DType) const override {
    return tokens * 1000 + longest;
  }
  std::int64_t attention_backward_workspace(device::AttentionShape, std::int64_t, std::int64_t longest, DType,
                                            std::int64_t) const override {
    return 7000 + longest;
  }
  std::int64_t rms_norm_backward_workspace(std::int64_t, std::int64_t hidden, DType) const override {
    return 8000 + hidden;
  }
  std::int64_t linear_cross_entropy_workspace(std::int64_t, std::int64_t vocabulary, DType,
                                              std::int64_t) const override {
    return 9000 + vocabulary;
  }
};

std::int64_t count(const Model& model) {
  std::int64_t elements = 0;
  for (const auto& parameter : model.parameters()) elements += parameter.elements();
  return elements;
}

TEST(LlamaStructure, ParametersAreInForwardOrder) {
  const auto model = make_llama(small(false));
  struct Line {
    std::string name;
    std::vector<std::int64_t> shape;
    bool fused_with_previous = false;
  };
  std::vector<Line> expected = {{"model.embed_tokens.weight", {50, 12}}};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    expected.push_back({layer + "input_layernorm.weight", {12}});
    expected.push_back({layer + "self_attn.q_proj.weight", {24, 12}});
    expected.push_back({layer + "self_attn.k_proj.weight", {12, 12}, true});
    expected.push_back({layer + "self_attn.v_proj.weight", {12, 12}, true});
    expected.push_back({layer + "self_attn.o_proj.weight", {12, 24}});
    expected.push_back({layer + "post_attention_layernorm.weight", {12}});
    expected.push_back({layer + "mlp.gate_proj.weight", {20, 12}});
    expected.push_back({layer + "mlp.up_proj.weight", {20, 12}, true});
    expected.push_back({layer + "mlp.down_proj.weight", {12, 20}});
  }
  expected.push_back({"model.norm.weight", {12}});
  expected.push_back({"lm_head.weight", {50, 12}});

  ASSERT_EQ(model->parameters().size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto& parameter = model->parameters()[i];
    EXPECT_EQ(parameter.name, expected[i].name);
    EXPECT_EQ(parameter.shape, expected[i].shape) << parameter.name;
    EXPECT_EQ(parameter.fused_with_previous, expected[i].fused_with_previous) << parameter.name;
    EXPECT_EQ(model->modules()[static_cast<std::size_t>(parameter.module)].name + ".weight", parameter.name);
    const bool norm = parameter.shape.size() == 1;
    EXPECT_EQ(parameter.initializer.kind == Initializer::Kind::ones, norm) << parameter.name;
    if (!norm) {
      EXPECT_EQ(parameter.initializer.standard_deviation, 0.03) << parameter.name;
    }
  }
}

TEST(LlamaStructure, ATiedHeadHasNoParameter) {
  const auto untied = make_llama(small(false)), tied = make_llama(small(true));
  EXPECT_EQ(tied->parameters().size() + 1, untied->parameters().size());
  EXPECT_EQ(tied->parameters().back().name, "model.norm.weight");
  const auto uses = tied->layers().back()->spec({1, 4}, DType::float32, FakeSizes()).parameters;
  ASSERT_EQ(uses.size(), 2U);
  EXPECT_EQ(tied->parameters()[static_cast<std::size_t>(uses[1].parameter)].name,
            "model.embed_tokens.weight");
}

TEST(LlamaStructure, ModulesAreThoseOfTransformers) {
  const auto model = make_llama(small(false));
  const auto& modules = model->modules();
  std::map<std::string, std::string> types;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    EXPECT_TRUE(types.emplace(modules[i].name, modules[i].type).second) << modules[i].name << " twice";
    if (i == 0) {
      EXPECT_EQ(modules[i].parent, -1);
      continue;
    }
    ASSERT_GE(modules[i].parent, 0);
    ASSERT_LT(modules[i].parent, static_cast<int>(i)) << "parents stand before children";
    const auto dot = modules[i].name.rfind('.');
    EXPECT_EQ(modules[static_cast<std::size_t>(modules[i].parent)].name,
              dot == std::string::npos ? "" : modules[i].name.substr(0, dot));
  }
  EXPECT_EQ(types.at(""), "LlamaForCausalLM");
  EXPECT_EQ(types.at("model"), "LlamaModel");
  EXPECT_EQ(types.at("model.embed_tokens"), "Embedding");
  EXPECT_EQ(types.at("model.layers"), "ModuleList");
  EXPECT_EQ(types.at("model.layers.1"), "LlamaDecoderLayer");
  EXPECT_EQ(types.at("model.layers.1.input_layernorm"), "LlamaRMSNorm");
  EXPECT_EQ(types.at("model.layers.1.self_attn"), "LlamaAttention");
  EXPECT_EQ(types.at("model.layers.1.self_attn.o_proj"), "Linear");
  EXPECT_EQ(types.at("model.layers.1.mlp"), "LlamaMLP");
  EXPECT_EQ(types.at("model.layers.1.mlp.down_proj"), "Linear");
  EXPECT_EQ(types.at("model.norm"), "LlamaRMSNorm");
  EXPECT_EQ(types.at("lm_head"), "Linear");
  EXPECT_EQ(types.at(model->layers()[1]->spec({1, 4}, DType::float32, FakeSizes()).module), "LlamaAttention");
  EXPECT_EQ(modules.size(), 5U + 2U * 12U + 1U);
  EXPECT_EQ(model->block_type(), "LlamaDecoderLayer");
  EXPECT_EQ(model->vocabulary(), 50);
}

TEST(LlamaStructure, EveryParameterIsUsedByItsLayer) {
  const auto model = make_llama(small(false));
  std::vector<std::string> layers;
  std::vector<int> used;
  for (const auto& layer : model->layers()) {
    const auto spec = layer->spec({2, 4}, DType::float32, FakeSizes());
    layers.push_back(spec.module);
    for (const auto& use : spec.parameters) {
      used.push_back(use.parameter);
      EXPECT_TRUE(use.forward);
      EXPECT_EQ(use.backward, use.parameter != 0) << "only the embedding's table is not read in backward";
      EXPECT_TRUE(model->parameters()[static_cast<std::size_t>(use.parameter)].name.starts_with(
          spec.module == "model.layers.0.self_attn" || spec.module == "model.layers.0.mlp" ? "model.layers.0."
                                                                                           : ""));
    }
  }
  EXPECT_THAT(layers, ElementsAre("model.embed_tokens", "model.layers.0.self_attn", "model.layers.0.mlp",
                                  "model.layers.1.self_attn", "model.layers.1.mlp", ""));
  ASSERT_EQ(used.size(), model->parameters().size());
  for (std::size_t i = 0; i < used.size(); ++i) EXPECT_EQ(used[i], static_cast<int>(i));
}

std::map<std::string, BufferSpec> by_name(const std::vector<BufferSpec>& specs) {
  std::map<std::string, BufferSpec> map;
  for (const auto& spec : specs) EXPECT_TRUE(map.emplace(spec.name, spec).second) << spec.name << " twice";
  return map;
}

void expect_spec(const std::vector<BufferSpec>& specs, const std::string& name, std::int64_t rows,
                 std::int64_t cols, DType dtype) {
  const auto map = by_name(specs);
  ASSERT_TRUE(map.contains(name)) << name;
  const auto& spec = map.at(name);
  EXPECT_EQ(spec.rows, rows) << name;
  EXPECT_EQ(spec.cols, cols) << name;
  EXPECT_EQ(spec.dtype, dtype) << name;
}

TEST(LlamaStructure, LayersHaveTheBuffersThatTheyNeed) {
  const auto model = make_llama(small(false));
  const auto& layers = model->layers();
  const BatchShape batch = {.sequences = 2, .seq_len = 5};
  constexpr DType kWide = DType::bfloat16, kStatistics = DType::float32;
  const auto spec = [&](std::size_t layer) { return layers[layer]->spec(batch, kWide, FakeSizes()); };

  const auto embedding = spec(0);
  EXPECT_FALSE(embedding.keeps_input);
  expect_spec({embedding.output}, "embedded", 10, 12, kWide);
  EXPECT_TRUE(embedding.saved.empty());

  const auto attention = spec(1);
  EXPECT_TRUE(attention.keeps_input);
  expect_spec({attention.output}, "attended", 10, 12, kWide);
  expect_spec(attention.saved, "normed", 10, 12, kWide);
  expect_spec(attention.saved, "inverse_rms", 1, 10, kStatistics);
  expect_spec(attention.saved, "qkv", 10, 48, kWide);
  expect_spec(attention.saved, "heads", 10, 24, kWide);
  expect_spec(attention.saved, "log_sum_exp", 4, 10, kStatistics);
  expect_spec(attention.forward_scratch, "workspace", 1, (10 * 1000 + 5 + 3) / 4, kStatistics);
  expect_spec(attention.backward_scratch, "dheads", 10, 24, kWide);
  expect_spec(attention.backward_scratch, "dqkv", 10, 48, kWide);
  expect_spec(attention.backward_scratch, "dnormed", 10, 12, kWide);
  expect_spec(attention.backward_scratch, "workspace", 1, (8000 + 12 + 3) / 4, kStatistics);

  const auto mlp = spec(2);
  EXPECT_TRUE(mlp.keeps_input);
  expect_spec(mlp.saved, "gate_up", 10, 40, kWide);
  expect_spec(mlp.saved, "activated", 10, 20, kWide);
  EXPECT_TRUE(mlp.forward_scratch.empty());
  expect_spec(mlp.backward_scratch, "dactivated", 10, 20, kWide);
  expect_spec(mlp.backward_scratch, "workspace", 1, (8000 + 12 + 3) / 4, kStatistics);

  const auto loss = spec(5);
  EXPECT_EQ(loss.output.rows, 0);
  EXPECT_TRUE(loss.keeps_input);
  EXPECT_TRUE(loss.saved.empty());
  expect_spec(loss.forward_scratch, "workspace", 1, (9000 + 50 + 3) / 4, kStatistics);
  expect_spec(loss.backward_scratch, "workspace", 1, (9000 + 50 + 3) / 4, kStatistics);

  const auto wide = layers[1]->spec(batch, DType::float64, FakeSizes());
  expect_spec(wide.saved, "inverse_rms", 1, 10, DType::float64);
  expect_spec(wide.forward_scratch, "workspace", 1, (10 * 1000 + 5 + 7) / 8, DType::float64);
}

// The configurations as published, without what llampi ignores.
constexpr const char* kLlama3_8B = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 8192,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "use_cache": true, "vocab_size": 128256})";
constexpr const char* kLlama31_8B = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
  "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling":
  {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
  "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 128256})";
constexpr const char* kLlama32_1B = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu",
  "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
  "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
  "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true,
  "vocab_size": 128256})";

TEST(LlamaStructure, AttentionLayersSayTheirShapeAndWindow) {
  LlamaConfig config;
  config.vocab_size = 23;
  config.hidden_size = 128;
  config.intermediate_size = 256;
  config.layers = 2;
  config.query_heads = 4;
  config.key_value_heads = 2;
  config.head_dim = 32;
  config.windows = {0, 7};
  for (const auto& fp8 : {std::optional<Fp8Recipe>(), std::optional(Fp8Recipe{})}) {
    const auto llama = make_llama(config, fp8);
    std::vector<std::int64_t> windows;
    for (const auto& layer : llama->layers()) {
      const auto spec = layer->spec({.sequences = 1, .seq_len = 128}, DType::bfloat16, FakeSizes());
      if (!spec.attention) continue;
      EXPECT_THAT(spec.module, ::testing::HasSubstr("self_attn"));
      EXPECT_EQ(spec.attention->query_heads, 4);
      EXPECT_EQ(spec.attention->key_value_heads, 2);
      EXPECT_EQ(spec.attention->head_dim, 32);
      windows.push_back(spec.attention->window);
    }
    EXPECT_THAT(windows, ElementsAre(0, 7)) << fp8.has_value();
  }
}

TEST(LlamaStructure, HasAsManyParametersAsPublished) {
  EXPECT_EQ(count(*make_llama(LlamaConfig::parse(kLlama3_8B, "Llama-3-8B"))), 8'030'261'248);
  EXPECT_EQ(count(*make_llama(LlamaConfig::parse(kLlama31_8B, "Llama-3.1-8B"))), 8'030'261'248);
  EXPECT_EQ(count(*make_llama(LlamaConfig::parse(kLlama32_1B, "Llama-3.2-1B"))), 1'235'814'400);
}

}  // namespace
}  // namespace llampi::test
