// SPDX-License-Identifier: Apache-2.0
// Folders that PEFT wrote (tests/oracle/adapters): with an adapter merged into its base, logits and loss are those of PEFT in
// float64; and what cannot be merged is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "llampi/checkpoint/adapter.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/infer/session.hpp"
#include "support/files.hpp"
#include "support/mpi_test.hpp"
#include "support/oracle.hpp"
#include "support/temporary_folder.hpp"

namespace llampi::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

const fs::path kOracle = fs::path(LLAMPI_TEST_DATA) / "oracle";

// As for folders of whole models in float32 (folders_test.cpp): products are float32, and so is the sum W + scale B A, which
// rounds once more what each product reads.
constexpr double kNorms = 2.5e-6, kElements = 1e-5;

class Adapters : public ::testing::TestWithParam<const char*> {
 protected:
  fs::path folder_ = kOracle / "adapters" / GetParam();
};

device::HostBatch batch_of(const std::vector<std::int32_t>& sequence) {
  const std::int64_t length = std::ssize(sequence) - 1;
  device::HostBatch batch(length);
  batch.documents = 1;
  std::iota(batch.positions().begin(), batch.positions().end(), 0);
  batch.cu_seqlens()[1] = static_cast<std::int32_t>(length);
  std::copy_n(sequence.begin(), length, batch.tokens().begin());
  std::copy_n(sequence.begin() + 1, length, batch.labels().begin());
  batch.valid_labels = length;
  return batch;
}

TEST_P(Adapters, MergedEqualPeft) {
  std::ifstream stream(folder_ / "expected.json");
  const json expected = json::parse(stream);
  const fs::path base = kOracle / "folders" / expected.at("base").get<std::string>();
  const std::vector<std::vector<std::int32_t>> sequences = expected.at("tokens");
  const std::int64_t length = std::ssize(sequences.front()) - 1;
  for (const auto strategy : {fsdp::Strategy::no_shard, fsdp::Strategy::full_shard}) {
    const auto session = infer::open_for_inference(test_world(), base, {1, length},
                                                   {.device = device::DeviceChoice::cpu, .threads = 1}, Log(),
                                                   folder_, strategy);
    double loss = 0;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const auto batch = batch_of(sequences[s]);
      loss += session.engine->evaluate(batch) / static_cast<double>(length) /
              static_cast<double>(sequences.size());
      std::vector<double> logits;
      for (std::int64_t row = 0; row < length; ++row) {
        const auto of_row = session.engine->logits(batch, row);
        logits.insert(logits.end(), of_row.begin(), of_row.end());
      }
      const auto& there = expected.at("logits").at("sequence_" + std::to_string(s));
      const auto actual = oracle::summarize(logits);
      const double norm = there.at("norm");
      EXPECT_NEAR(actual.norm, norm, kNorms * norm);
      EXPECT_NEAR(actual.dot, there.at("dot").get<double>(), kElements * norm);
      const std::vector<double> last = there.at("last");
      for (std::size_t i = 0; i < last.size(); ++i)
        EXPECT_NEAR(logits[logits.size() - last.size() + i], last[i], kElements * norm) << "token " << i;
    }
    EXPECT_NEAR(loss, expected.at("loss").get<double>(), kNorms * loss);
  }
}

INSTANTIATE_TEST_SUITE_P(Peft, Adapters, ::testing::Values("all_linear", "rslora_some"),
                         [](const auto& folder) { return folder.param; });

TEST(Adapter, IsReadAsPeftWroteIt) {
  const auto all = checkpoint::open_adapter(kOracle / "adapters" / "all_linear").info;
  EXPECT_EQ(all.config.rank, 3);
  EXPECT_EQ(all.config.alpha, 5);
  EXPECT_EQ(all.config.dropout, 0.1);
  EXPECT_DOUBLE_EQ(all.config.scale(), 5.0 / 3);
  EXPECT_EQ(all.config.modules.size(), 14U);
  const auto some = checkpoint::open_adapter(kOracle / "adapters" / "rslora_some").info;
  EXPECT_DOUBLE_EQ(some.config.scale(), 6.0 / 2);
  EXPECT_EQ(some.config.modules,
            (std::vector<std::string>{"model.layers.0.mlp.down_proj", "model.layers.1.self_attn.q_proj"}));
}

TEST(Adapter, ItsTextComesBack) {
  checkpoint::AdapterInfo info;
  info.config = {.rank = 8, .alpha = 12.5, .dropout = 0.25, .scaling = model::LoraScaling::rslora};
  info.config.modules = {"model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj",
                         "model.layers.1.mlp.down_proj"};
  info.base = "some/folder";
  info.base_sums = {{"a.weight", 0xFFFFFFFF}, {"b", 7}};
  const auto text = checkpoint::adapter_text(info, 2);
  const auto back = checkpoint::parse_adapter(text, "here");
  EXPECT_EQ(back.config.rank, 8);
  EXPECT_EQ(back.config.alpha, 12.5);
  EXPECT_EQ(back.config.dropout, 0.25);
  EXPECT_EQ(back.config.scaling, model::LoraScaling::rslora);
  EXPECT_EQ(back.base, info.base);
  EXPECT_EQ(back.base_sums, info.base_sums);
  EXPECT_EQ(json::parse(text)["target_modules"].size(), 3U);  // not every layer has the second
  info.config.modules.pop_back();
  EXPECT_EQ(json::parse(checkpoint::adapter_config_text(info, 2))["target_modules"],
            json::array({"up_proj"}));
}

TEST(Adapter, RefusesWhatIsNotSupported) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      checkpoint::parse_adapter(text, "here");
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(R"({"r": 4, "lora_alpha": 8})"), "");
  EXPECT_THAT(refusal(R"({"r": 4, "use_dora": true})"), HasSubstr("use_dora = true is not supported"));
  EXPECT_THAT(refusal(R"({"r": 4, "bias": "all"})"), HasSubstr("bias = \"all\""));
  EXPECT_THAT(refusal(R"({"r": 4, "peft_type": "IA3"})"), HasSubstr("peft_type"));
  EXPECT_THAT(refusal(R"({"r": 4, "modules_to_save": ["lm_head"]})"), HasSubstr("modules_to_save"));
  EXPECT_THAT(refusal(R"({"r": 4, "rank_pattern": {"q_proj": 2}})"), HasSubstr("rank_pattern"));
  EXPECT_THAT(refusal(R"({"r": 4, "init_lora_weights": "pissa"})"), HasSubstr("init_lora_weights"));
  EXPECT_THAT(refusal(R"({"r": 0})"), HasSubstr("r = 0 must be a whole number from 1"));
  EXPECT_THAT(refusal(R"({"r": 4, "lora_alpha": "x"})"), HasSubstr("lora_alpha is not a number"));
  EXPECT_THAT(refusal("{"), HasSubstr("is not JSON"));
  EXPECT_THAT(refusal("[]"), HasSubstr("is not the configuration"));
}

TEST(Adapter, RefusesTensorsOfOtherNames) {
  const auto refusal_with = [](const std::string& name, const std::string& other) -> std::string {
    const TemporaryFolder folder;
    const auto peft = kOracle / "adapters" / "rslora_some";
    fs::copy_file(peft / "adapter_config.json", folder / "adapter_config.json");
    auto weights = read_text(peft / "adapter_model.safetensors");
    weights.replace(weights.find(name), name.size(), other);
    write_text(folder / "adapter_model.safetensors", weights);
    try {
      checkpoint::open_adapter(folder.path());
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal_with("base_model.model.", "base_model.mode1."),
              HasSubstr("whose name does not begin with base_model.model.; give an adapter"));
  EXPECT_THAT(refusal_with("self_attn.q_proj.lora_A.weight", "self_attn.q_.base_layer.weight"),
              HasSubstr("q_.base_layer.weight, which is of the base model; save the adapter in Python"));
  EXPECT_THAT(refusal_with("lora_A.weight", "lora_C.weight"),
              HasSubstr("lora_C.weight, but the names of a LoRA adapter's tensors end in .lora_A.weight or"));
}

TEST(Adapter, IsMergedIntoItsOwnModelAlone) {
  const auto merge = [](const char* base) {
    return checkpoint::merge(checkpoint::open_safetensors(kOracle / "folders" / base, true),
                             checkpoint::open_adapter(kOracle / "adapters" / "all_linear"));
  };
  EXPECT_NO_THROW(merge("gqa_tied_v5"));
  EXPECT_THROW(merge("head_dim_v4"), UserError);
}

}  // namespace
}  // namespace llampi::test
