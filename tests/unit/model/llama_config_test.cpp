// SPDX-License-Identifier: Apache-2.0
// LlamaConfig: what is read, what is refused and in which words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>

#include "llampi/model/llama.hpp"

namespace llampi::test {
namespace {

using namespace model;

using nlohmann::json;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Only what is required.
json minimal() {
  return {{"vocab_size", 100},
          {"hidden_size", 48},
          {"intermediate_size", 96},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 6}};
}

json minimal_with(const json& more) {
  json config = minimal();
  config.update(more);
  return config;
}

LlamaConfig parse(const json& config) { return LlamaConfig::parse(config.dump(), "here.json"); }

std::string refusal(const std::string& text) {
  try {
    LlamaConfig::parse(text, "here.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}
std::string refusal(const json& config) { return refusal(config.dump()); }

TEST(LlamaConfig, DefaultsAreThoseOfTransformers) {
  const LlamaConfig config = parse(minimal());
  EXPECT_EQ(config.vocab_size, 100);
  EXPECT_EQ(config.hidden_size, 48);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.query_heads, 6);
  EXPECT_EQ(config.key_value_heads, 6);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.max_position_embeddings, 2048);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_FALSE(config.rope_scaling);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.initializer_range, 0.02);
  EXPECT_EQ(config.json, minimal().dump());
}

TEST(LlamaConfig, NullMeansMissingAndHarmlessFieldsAreIgnored) {
  const LlamaConfig config =
      parse(minimal_with({{"num_key_value_heads", nullptr},
                          {"head_dim", nullptr},
                          {"rope_scaling", nullptr},
                          {"rope_parameters", nullptr},
                          {"sliding_window", nullptr},
                          {"quantization_config", nullptr},
                          {"attention_bias", false},
                          {"attention_dropout", 0},
                          {"pretraining_tp", 1},
                          {"torch_dtype", "bfloat16"},
                          {"use_cache", true},
                          {"layer_types", {"full_attention", "full_attention", "full_attention"}},
                          {"eos_token_id", {1, 2, 3}},
                          {"transformers_version", "5.0.0"}}));
  EXPECT_EQ(config.key_value_heads, 6);
  EXPECT_EQ(config.head_dim, 8);
}

TEST(LlamaConfig, GivenFieldsAreRead) {
  const LlamaConfig config = parse(minimal_with({{"model_type", "llama"},
                                                 {"architectures", {"LlamaForCausalLM"}},
                                                 {"num_key_value_heads", 2},
                                                 {"head_dim", 10},
                                                 {"max_position_embeddings", 77},
                                                 {"rms_norm_eps", 1e-5},
                                                 {"rope_theta", 5000},
                                                 {"tie_word_embeddings", true},
                                                 {"initializer_range", 0.01}}));
  EXPECT_EQ(config.key_value_heads, 2);
  EXPECT_EQ(config.head_dim, 10);
  EXPECT_EQ(config.max_position_embeddings, 77);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 5000);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.initializer_range, 0.01);
}

json llama3_scaling(const char* type_field) {
  return {{type_field, "llama3"},
          {"factor", 32.0},
          {"low_freq_factor", 1.5},
          {"high_freq_factor", 4.5},
          {"original_max_position_embeddings", 4096}};
}

void expect_llama3(const LlamaConfig& config) {
  EXPECT_EQ(config.rope_theta, 500000);
  ASSERT_TRUE(config.rope_scaling);
  EXPECT_EQ(config.rope_scaling->factor, 32);
  EXPECT_EQ(config.rope_scaling->low_freq_factor, 1.5);
  EXPECT_EQ(config.rope_scaling->high_freq_factor, 4.5);
  EXPECT_EQ(config.rope_scaling->original_max_position_embeddings, 4096);
}

TEST(LlamaConfig, ReadsRopeAsTransformers4WritesIt) {
  expect_llama3(
      parse(minimal_with({{"rope_theta", 500000.0}, {"rope_scaling", llama3_scaling("rope_type")}})));
  expect_llama3(parse(minimal_with({{"rope_theta", 500000.0}, {"rope_scaling", llama3_scaling("type")}})));
}

TEST(LlamaConfig, ReadsRopeAsTransformers5WritesIt) {
  json parameters = llama3_scaling("rope_type");
  parameters["rope_theta"] = 500000.0;
  expect_llama3(parse(minimal_with({{"rope_parameters", parameters}})));
  // Written by both generations, in agreement.
  expect_llama3(parse(
      minimal_with({{"rope_parameters", parameters}, {"rope_scaling", parameters}, {"rope_theta", 5e5}})));

  const auto plain =
      parse(minimal_with({{"rope_parameters", {{"rope_theta", 3e4}, {"rope_type", "default"}}}}));
  EXPECT_EQ(plain.rope_theta, 3e4);
  EXPECT_FALSE(plain.rope_scaling);
}

/// Every refusal is one sentence that begins with the file and names the field.
void expect_refused(const json& more, const std::string& field, const std::string& reason) {
  EXPECT_THAT(refusal(minimal_with(more)),
              AllOf(StartsWith("here.json: " + field + " is "), HasSubstr(reason), EndsWith(".")));
}

TEST(LlamaConfig, RefusesOtherModels) {
  for (const char* type : {"mixtral", "qwen3_moe", "gemma2", "phi3", "qwen2_vl"}) {
    expect_refused({{"model_type", type}}, "model_type",
                   R"(only models of type "llama", "mistral", "qwen2", "qwen3" are supported)");
  }
  expect_refused({{"model_type", "qwen2"}, {"architectures", {"LlamaForCausalLM"}}}, "architectures",
                 "Qwen2ForCausalLM");
  expect_refused({{"model_type", 3}}, "model_type", "a string is needed");
  expect_refused({{"architectures", {"LlamaForSequenceClassification"}}}, "architectures",
                 "LlamaForCausalLM");
  expect_refused({{"architectures", "LlamaForCausalLM"}}, "architectures", "LlamaForCausalLM");
}

TEST(LlamaConfig, RefusesUnsupportedSettingsByName) {
  expect_refused({{"hidden_act", "gelu"}}, "hidden_act", "silu");
  expect_refused({{"attention_bias", true}}, "attention_bias", "bias");
  expect_refused({{"mlp_bias", true}}, "mlp_bias", "bias");
  expect_refused({{"pretraining_tp", 2}}, "pretraining_tp", "only 1");
  expect_refused({{"attention_dropout", 0.1}}, "attention_dropout", "dropout");
  expect_refused({{"sliding_window", 4096}}, "sliding_window", "not supported");
  expect_refused({{"quantization_config", {{"bits", 4}}}}, "quantization_config", "quantized");
  expect_refused({{"partial_rotary_factor", 0.5}}, "partial_rotary_factor", "not supported");
  expect_refused({{"layer_types", {"chunked_attention"}}}, "layer_types", "full_attention");
  expect_refused({{"layer_types", {"sliding_attention"}}}, "layer_types", "sliding_window");
}

/// Three layers and six heads, of the family with this model_type.
LlamaConfig of_family(const char* type, json more) {
  more["model_type"] = type;
  if (!more.contains("num_key_value_heads")) more["num_key_value_heads"] = 2;
  return parse(minimal_with(more));
}

TEST(LlamaConfig, KnowsFamiliesByTheirTypeOrTheirClass) {
  EXPECT_TRUE(of_family("qwen2", json::object()).family().qkv_bias);
  EXPECT_TRUE(of_family("qwen3", json::object()).family().qk_norms);
  EXPECT_EQ(of_family("qwen3", json::object()).head_dim, 128);  // transformers' default
  EXPECT_EQ(of_family("qwen2", json::object()).max_position_embeddings, 32768);
  EXPECT_EQ(of_family("mistral", json::object()).max_position_embeddings, 131072);
  EXPECT_STREQ(of_family("mistral", json::object()).family().prefix, "Mistral");
  EXPECT_STREQ(parse(minimal_with({{"architectures", {"Qwen3ForCausalLM"}}, {"num_key_value_heads", 2}}))
                   .family()
                   .prefix,
               "Qwen3");
  EXPECT_STREQ(parse(minimal()).family().model_type, "llama");
}

TEST(LlamaConfig, WindowsAreThoseOfTransformers) {
  using ::testing::ElementsAre;
  using ::testing::IsEmpty;
  EXPECT_THAT(of_family("mistral", {{"sliding_window", nullptr}}).windows, IsEmpty());
  EXPECT_THAT(of_family("mistral", {{"sliding_window", 7}}).windows, ElementsAre(7, 7, 7));
  EXPECT_THAT(of_family("mistral", json::object()).windows, ElementsAre(4096, 4096, 4096));
  const json window{{"sliding_window", 7}, {"max_window_layers", 1}};
  json used = window;
  used["use_sliding_window"] = true;
  for (const char* type : {"qwen2", "qwen3"}) {
    EXPECT_THAT(of_family(type, window).windows, IsEmpty());
    EXPECT_THAT(of_family(type, used).windows, ElementsAre(0, 7, 7));
    json listed = used;
    listed["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
    EXPECT_THAT(of_family(type, listed).windows, ElementsAre(7, 0, 7));
  }
}

TEST(LlamaConfig, RefusesOtherRopeScalings) {
  for (const char* type : {"linear", "dynamic", "yarn", "longrope"}) {
    expect_refused({{"rope_scaling", {{"rope_type", type}, {"factor", 2.0}}}}, "rope_scaling.rope_type",
                   "llama3");
    expect_refused({{"rope_scaling", {{"type", type}, {"factor", 2.0}}}}, "rope_scaling.type", "llama3");
    expect_refused({{"rope_parameters", {{"rope_type", type}, {"rope_theta", 1e4}}}},
                   "rope_parameters.rope_type", "llama3");
  }
  expect_refused({{"rope_scaling", {{"factor", 2.0}}}}, "rope_scaling.rope_type", "which scaling");
  expect_refused({{"rope_scaling", {{"rope_type", "llama3"}, {"type", "linear"}}}}, "rope_scaling.rope_type",
                 "linear");
  expect_refused({{"rope_scaling", "llama3"}}, "rope_scaling", "object");
  expect_refused({{"rope_parameters", {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}}}}}},
                 "rope_parameters.full_attention", "from layer to layer");
  expect_refused({{"rope_parameters", {{"partial_rotary_factor", 0.5}}}},
                 "rope_parameters.partial_rotary_factor", "RoPE");
}

TEST(LlamaConfig, RefusesContradictingRopeSettings) {
  expect_refused({{"rope_theta", 1e4}, {"rope_parameters", {{"rope_theta", 2e4}}}},
                 "rope_parameters.rope_theta", "outside");
  expect_refused({{"rope_parameters", {{"rope_theta", 2e4}}}, {"rope_scaling", llama3_scaling("type")}},
                 "rope_scaling", "rope_parameters");
}

TEST(LlamaConfig, RefusesIncompleteLlama3Scaling) {
  for (const char* name :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    const std::string field = std::string("rope_scaling.") + name;
    json scaling = llama3_scaling("rope_type");
    scaling.erase(name);
    EXPECT_EQ(refusal(minimal_with({{"rope_scaling", scaling}})), "here.json: " + field + " is missing.");
    scaling[name] = -1;
    expect_refused({{"rope_scaling", scaling}}, field, "above 0");
    scaling[name] = "8";
    expect_refused({{"rope_scaling", scaling}}, field, "number");
  }
  json scaling = llama3_scaling("rope_type");
  scaling["high_freq_factor"] = scaling["low_freq_factor"];
  expect_refused({{"rope_scaling", scaling}}, "rope_scaling.high_freq_factor", "above low_freq_factor");
}

TEST(LlamaConfig, RequiredFieldsAreNamedWhenMissing) {
  for (const char* name :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    json config = minimal();
    config.erase(name);
    EXPECT_EQ(refusal(config), std::string("here.json: ") + name + " is missing.");
  }
}

TEST(LlamaConfig, SizesAreWholeAndPositive) {
  for (const char* name :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const json& value :
         {json(0), json(-4), json(4.5), json("4"), json(true), json(1ULL << 31), json(~0ULL)}) {
      expect_refused({{name, value}}, name, "a whole number from 1 to 2147483647 is needed");
    }
  }
}

TEST(LlamaConfig, NumbersAndFlagsHaveTheirTypes) {
  for (const char* name : {"rms_norm_eps", "rope_theta"}) {
    expect_refused({{name, "1e-5"}}, name, "a number is needed");
    expect_refused({{name, 0}}, name, "above 0");
  }
  expect_refused({{"initializer_range", -0.1}}, "initializer_range", "negative");
  for (const char* name : {"tie_word_embeddings", "attention_bias", "mlp_bias"}) {
    expect_refused({{name, 1}}, name, "true or false");
  }
  expect_refused({{"hidden_act", false}}, "hidden_act", "a string is needed");
}

TEST(LlamaConfig, RefusesHeadsThatDoNotFit) {
  expect_refused({{"num_key_value_heads", 4}}, "num_key_value_heads",
                 "divide num_attention_heads, which is 6");
  expect_refused({{"num_key_value_heads", 12}}, "num_key_value_heads", "divide");
  expect_refused({{"hidden_size", 50}}, "hidden_size", "multiple of num_attention_heads");
  expect_refused({{"head_dim", 7}}, "head_dim", "even");
  expect_refused({{"hidden_size", 54}}, "head_dim", "this gives 9");
  EXPECT_EQ(parse(minimal_with({{"hidden_size", 50}, {"head_dim", 8}})).head_dim, 8);
}

TEST(LlamaConfig, RefusesSizesWhoseProductsOverflow) {
  constexpr std::int64_t kLargest = 2147483647;
  expect_refused({{"num_hidden_layers", kLargest}}, "num_hidden_layers", "at most 100000");
  expect_refused({{"intermediate_size", kLargest}, {"hidden_size", 600'000'000}}, "hidden_size",
                 "makes 1.6e+19 parameters, and at most 1e+15 are supported");
  expect_refused({{"vocab_size", kLargest}, {"hidden_size", 600'000'000}}, "hidden_size", "parameters");
  expect_refused(
      {{"num_attention_heads", 600'000'000}, {"hidden_size", 600'000'000}, {"head_dim", 2147483646}},
      "hidden_size", "parameters");
  EXPECT_EQ(parse(minimal_with({{"num_hidden_layers", 100'000}})).layers, 100'000);
}

TEST(LlamaConfig, RefusesDeepNesting) {
  // So deep that whatever recursed over it would not come back.
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  for (const char* name : {"model_type", "rope_scaling", "something_else"})
    EXPECT_THAT(refusal("{\"" + std::string(name) + "\": " + deep + "}"), HasSubstr("64 levels deep"))
        << name;
}

TEST(LlamaConfig, RefusesTextThatIsNoConfiguration) {
  EXPECT_THAT(refusal(std::string("{\"vocab_size\": ")),
              AllOf(StartsWith("here.json: this is not JSON: "), EndsWith(".")));
  EXPECT_THAT(refusal(std::string()), StartsWith("here.json: this is not JSON: "));
  EXPECT_THAT(refusal(std::string("[1, 2]")),
              StartsWith("here.json: the text is [1,2] where a JSON object is needed"));
}

TEST(LlamaConfig, IsWrittenForEveryVersionOfTransformers) {
  const json rope = {{"rope_type", "llama3"},   {"rope_theta", 5e5},
                     {"factor", 8.0},           {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 48}};
  const json of_5 =
      minimal_with({{"dtype", "bfloat16"}, {"rope_parameters", rope}, {"rope_scaling", nullptr}});
  const json written = json::parse(config_text(parse(of_5), DType::float32));
  EXPECT_EQ(written["dtype"], "float32");
  EXPECT_EQ(written["torch_dtype"], "float32");
  EXPECT_EQ(written["model_type"], "llama");
  EXPECT_EQ(written["rope_parameters"], rope);
  EXPECT_EQ(written["rope_scaling"], rope);
  EXPECT_EQ(written["rope_theta"], 5e5);
  EXPECT_EQ(parse(written).rope_scaling->factor, 8);

  const json of_4 = minimal_with({{"torch_dtype", "float16"}, {"rope_theta", 3e4}});
  json expected = of_4;
  expected.update({{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}});
  expected.update({{"dtype", "bfloat16"}, {"torch_dtype", "bfloat16"}});
  EXPECT_EQ(json::parse(config_text(parse(of_4), DType::bfloat16)), expected);

  const json unscaled = minimal_with({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 3e4}}}});
  const json text = json::parse(config_text(parse(unscaled), DType::float32));
  EXPECT_EQ(text["rope_theta"], 3e4);
  EXPECT_FALSE(text.contains("rope_scaling"));
}

TEST(LlamaConfig, IsReadFromAFileOrItsFolder) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "llampi_test_config";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << minimal().dump();
  EXPECT_EQ(LlamaConfig::read(folder).layers, 3);
  EXPECT_EQ(LlamaConfig::read(folder / "config.json").layers, 3);

  std::ofstream(folder / "config.json") << "{}";
  EXPECT_THROW(
      try { LlamaConfig::read(folder); } catch (const UserError& error) {
        EXPECT_EQ(std::string(error.what()), (folder / "config.json").string() + ": vocab_size is missing.");
        throw;
      },
      UserError);
  std::filesystem::remove_all(folder);
  EXPECT_THROW(
      try { LlamaConfig::read(folder); } catch (const UserError& error) {
        EXPECT_THAT(error.what(), AllOf(StartsWith(folder.string()), HasSubstr("cannot be opened")));
        throw;
      },
      UserError);
}

}  // namespace
}  // namespace llampi::test
