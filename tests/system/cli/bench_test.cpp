// SPDX-License-Identifier: Apache-2.0
// `llampi bench` as a user meets it. What it measures is not looked at, but that everything is measured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "support/shell.hpp"

namespace llampi::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

class BenchCommand : public ::testing::Test {
 protected:
  BenchCommand() {
    std::filesystem::create_directory(folder_.path() / "model");
    folder_.write("model/config.json", R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 32,
      "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
      "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
      "hidden_act": "silu", "initializer_range": 0.02})");
    folder_.write(
        "run.ini",
        "[model]\nconfig = model\n[data]\nseq_len = 32\n[train]\nmicro_batch = 1\nglobal_batch = 2\n");
  }
  Ending bench(const std::string& options, int ranks = 1) const {
    const std::string launch = ranks > 1 ? MPIRUN " -n " + std::to_string(ranks) + " " : "";
    return shell(folder_.path(),
                 launch + LLAMPI_PROGRAM " bench --config run.ini --steps 1 --seconds 1e-6 " + options);
  }
  std::string refusal(const std::string& options) const {
    const Ending ending = bench(options);
    EXPECT_EQ(ending.status, 2) << ending.err;
    return ending.err;
  }
  nlohmann::json json(const std::string& file) const {
    std::ifstream stream(folder_.path() / file);
    return nlohmann::json::parse(stream, nullptr, false);
  }
  ScratchFolder folder_;
};

TEST_F(BenchCommand, TakesTheConfigurationOfRank0) {
  const std::string options = " bench --config run.ini --steps 1 --steps-only --json a.json ";
  const Ending ending =
      shell(folder_.path(), std::string(MPIRUN) + " -n 1 env LLAMPI_TRAIN_GLOBAL_BATCH=8 " + LLAMPI_PROGRAM +
                                options + " : -n 1 " + LLAMPI_PROGRAM + options);
  ASSERT_EQ(ending.status, 0) << ending.err;
  const auto written = json("a.json");
  for (const auto& row : written["rows"]) {
    if (row["group"] != "step") continue;
    EXPECT_NEAR(row["rate"].get<double>() * row["seconds"].get<double>(), 8 * 32, 1e-3) << row.dump();
    return;
  }
  FAIL() << "no step";
}

TEST_F(BenchCommand, MeasuresEverythingAndWritesAMachineFileThatAPlanTakes) {
  const Ending first = bench("--folder . --json a.json --calibrate tiny.json", 2);
  ASSERT_EQ(first.status, 0) << first.err;
  EXPECT_THAT(first.out, ContainsRegex(" [+-][0-9.]+ % against full_shard\n"));
  EXPECT_THAT(first.out, HasSubstr(", bus bandwidth "));
  std::set<std::string> groups;
  const auto written = json("a.json");
  for (const auto& row : written["rows"]) {
    groups.insert(row["group"]);
    EXPECT_TRUE(row["seconds"].is_number()) << row.dump();
  }
  EXPECT_THAT(groups, IsSupersetOf({"step", "phase", "operation", "product", "attention", "memory",
                                    "collective", "checkpoint"}));
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
    EXPECT_NE(entry.path().extension(), ".h5") << "the checkpoint is still there";
  const Ending plan =
      shell(folder_.path(),
            std::string(LLAMPI_PROGRAM) + " plan --config run.ini --ranks 2 --threads 1 --machine tiny.json");
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("predicted for tiny\n"));
  const Ending again = bench("--steps-only --compare a.json --json a.json", 2);
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_THAT(again.out,
              ContainsRegex(
                  "\nstep +full_shard +[0-9.]+ +[0-9.]+  ([+-][0-9.]+ % time, (slower|faster)|same time)\n"));
}

// The rate counts the keys that queries see, so it says which window was measured.
TEST_F(BenchCommand, MeasuresAttentionWithTheWindowOfTheModel) {
  std::filesystem::create_directory(folder_.path() / "windowed");
  folder_.write("windowed/config.json", R"({"model_type": "mistral", "vocab_size": 64, "hidden_size": 32,
      "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
      "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
      "hidden_act": "silu", "initializer_range": 0.02, "sliding_window": 8})");
  /// Operations of the forward pass of each length of documents.
  const auto measured = [&](const std::string& model) {
    const Ending ending =
        bench("--model.config=" + model + " --train.global_batch=1 --json " + model + ".json");
    EXPECT_EQ(ending.status, 0) << ending.err;
    std::map<std::string, double> operations;
    const auto written = json(model + ".json");
    for (const auto& row : written["rows"]) {
      const std::string name = row["name"];
      if (row["group"] == "attention" && name.starts_with("forward"))
        operations[name] = row["rate"].get<double>() * row["seconds"].get<double>() * 1e12;
    }
    return operations;
  };
  const auto whole = measured("model"), windowed = measured("windowed");
  ASSERT_EQ(whole.size(), 2U);
  ASSERT_EQ(windowed.size(), 2U);
  // Two products of 2 operations, of 32 queries of 32 columns with half of the keys of a document each.
  EXPECT_NEAR(whole.at("forward, 32 tokens, documents of 16, float32"), 4. * 32 * 32 * 8, 1);
  EXPECT_NEAR(whole.at("forward, 32 tokens, documents of 32, float32"), 4. * 32 * 32 * 16, 1);
  // With 8 keys each, but for the first queries of a document: 8 - 8^2 / (2 length) on average.
  EXPECT_NEAR(windowed.at("forward, 32 tokens, documents of 16, window of 8, float32"), 4. * 32 * 32 * 6, 1);
  EXPECT_NEAR(windowed.at("forward, 32 tokens, documents of 32, window of 8, float32"), 4. * 32 * 32 * 7, 1);
}

TEST_F(BenchCommand, ComparesStrategies) {
  const Ending ending = bench("--strategies --json s.json --train.global_batch=4", 4);
  ASSERT_EQ(ending.status, 0) << ending.err;
  std::vector<std::string> names;
  const auto written = json("s.json");
  for (const auto& row : written["rows"]) {
    EXPECT_EQ(row["group"], "strategy");
    names.push_back(row["name"]);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"full_shard", "shard_grad_op", "no_shard", "hybrid_shard of 2",
                                             "hybrid_shard_zero2 of 2"}));
  EXPECT_THAT(ending.out, HasSubstr(" % against full_shard\n"));
}

// Of `bench` and of `bench --strategies`: the same configurations under the same names.
TEST_F(BenchCommand, MeasuresStepsWithTheStrategiesThatItCompares) {
  using Names = std::vector<std::string>;
  const auto measured = [&](const std::string& options) {
    const Ending ending = bench("--json steps.json --train.global_batch=4 " + options, 4);
    EXPECT_EQ(ending.status, 0) << ending.err;
    std::map<std::string, Names> names;  // of each group
    const auto written = json("steps.json");
    for (const auto& row : written["rows"]) names[row["group"]].push_back(row["name"]);
    return names;
  };
  const auto usual = measured(""), sized = measured("--fsdp.strategy=hybrid_shard --fsdp.shard_group_size=2");
  EXPECT_EQ(usual.at("step"), (Names{"full_shard", "shard_grad_op", "no_shard", "hybrid_shard of 2",
                                     "hybrid_shard_zero2 of 2"}));
  EXPECT_EQ(usual.at("phase"),
            (Names{"matrix products, including fused operations", "attention", "other operations",
                   "gradient norm and optimizer", "between operations, and waiting"}));
  EXPECT_EQ(sized.at("step"),
            (Names{"hybrid_shard", "full_shard", "shard_grad_op", "no_shard", "hybrid_shard_zero2"}));
}

TEST_F(BenchCommand, RefusesBeforeItMeasures) {
  folder_.write("mine.json", "{}");
  EXPECT_THAT(refusal("--json mine.json"),
              HasSubstr("mine.json already exists and is not a result of llampi bench: name another file\n"));
  EXPECT_THAT(refusal("--json same.json --calibrate ./same.json"),
              HasSubstr("--json and --calibrate are both same.json"));
  EXPECT_THAT(refusal("--json /proc/b.json"), HasSubstr("/proc/b.json cannot be created"));
  EXPECT_THAT(refusal("--compare no.json"), HasSubstr("llampi: there is no file no.json to compare with\n"));
  EXPECT_THAT(refusal("--compare mine.json"),
              HasSubstr("llampi: mine.json is not a file that llampi bench --json has written\n"));
  EXPECT_THAT(refusal("--folder nowhere"),
              HasSubstr("llampi: --folder nowhere is not a folder; create it first\n"));
  EXPECT_THAT(refusal("--steps-only --calibrate x.json"),
              HasSubstr("llampi: --calibrate needs single operations; leave --steps-only out\n"));
  EXPECT_THAT(refusal("--strategies"),
              HasSubstr("llampi: --strategies needs several ranks; start it with mpirun -n RANKS\n"));
  EXPECT_THAT(refusal("--strategies --steps-only"),
              HasSubstr("llampi: --strategies is not possible with --steps-only; leave that out\n"));
}

}  // namespace
}  // namespace llampi::test
