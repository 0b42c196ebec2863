// SPDX-License-Identifier: Apache-2.0
// fsdp.sum_order = tree, as a user meets it: runs on other numbers of ranks, killed and resumed, are one run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/shell.hpp"

namespace llampi::test {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 24;

class SumOrder : public ::testing::Test {
 protected:
  SumOrder() {
    folder_.write("model.json",
                  R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48,
                      "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
                      "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                      "tie_word_embeddings": true, "hidden_act": "silu", "initializer_range": 0.02})");
    std::string text;
    for (int i = 0; i < 400; ++i) text += "the quick brown fox " + std::to_string(i * i) + "\n";
    folder_.write("text", text);
    folder_.write("held", text.substr(0, 700));
    for (const std::string name : {"text", "held"}) {
      const Ending ending = run("tokenize --tokenizer bytes --output " + name + ".h5 " + name);
      EXPECT_EQ(ending.status, 0) << ending.err;
    }
    folder_.write(
        "run.ini",
        "[run]\nthreads = 1\n[model]\nconfig = model.json\n[data]\ntrain = text.h5\neval = held.h5\nseq_len = 16\n"
        "[train]\nsteps = 24\nmicro_batch = 1\nglobal_batch = 24\neval_every = 8\n[fsdp]\nsum_order = tree\n"
        "[checkpoint]\nevery = 4\nkeep = 9\n");
  }

  Ending run(const std::string& arguments) const {
    return shell(folder_.path(), std::string(LLAMPI_PROGRAM) + " " + arguments);
  }
  static std::string job(int ranks, const std::string& options) {
    return std::string(MPIRUN) + " --oversubscribe -n " + std::to_string(ranks) + " " + LLAMPI_PROGRAM +
           " train --config run.ini " + options;
  }
  void expect_trained(int ranks, const std::string& options) const {
    const Ending ending = shell(folder_.path(), job(ranks, options));
    EXPECT_EQ(ending.status, 0) << options << "\n" << ending.err;
  }

  /// Loss, gradient norm, and loss of evaluations, of each step.
  std::map<int, std::vector<nlohmann::json>> curve(const std::string& dir) const {
    std::map<int, std::vector<nlohmann::json>> result;
    std::istringstream lines(read_text(folder_.path() / dir / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      for (const char* key : {"loss", "grad_norm", "eval_loss"}) {
        if (json.contains(key)) result[json["step"].get<int>()].push_back(json[key]);
      }
    }
    return result;
  }
  /// The weights after the last step, as they are exported in float32.
  std::string weights(const std::string& dir) const {
    const Ending ending = run("export --dtype float32 --checkpoint " + dir + " --output hf-" + dir);
    EXPECT_EQ(ending.status, 0) << ending.err;
    return read_text(folder_.path() / ("hf-" + dir) / "model.safetensors");
  }

  ScratchFolder folder_;
};

TEST_F(SumOrder, RunsOnOtherNumbersOfRanksAreOneRun) {
  expect_trained(1, "--run.dir=alone");
  const auto expected = curve("alone");
  ASSERT_EQ(expected.size(), static_cast<std::size_t>(kSteps));
  expect_trained(4, "--run.dir=four --fsdp.strategy=hybrid_shard --fsdp.shard_group_size=2");
  EXPECT_EQ(curve("four"), expected);
  // Killed on four ranks, it goes on on two, with another strategy and accumulation.
  const std::string checkpoint = "killed/checkpoints/step-00000008.h5";
  const Ending killed =
      shell(folder_.path(), job(4, "--run.dir=killed > log 2>&1") + " & job=$!; while [ ! -e " + checkpoint +
                                " ] && kill -0 $job 2> /dev/null; do sleep 0.02; done; "
                                "ranks=$(cat /proc/$job/task/$job/children); kill -KILL $ranks; wait $job");
  EXPECT_NE(killed.status, 0) << "it was done before it was killed";
  EXPECT_LT(curve("killed").size(), expected.size());
  expect_trained(2, "--run.dir=killed --fsdp.strategy=no_shard --fsdp.accumulate=unsharded");
  EXPECT_EQ(curve("killed"), expected);
  const std::string weights_alone = weights("alone");
  EXPECT_FALSE(weights_alone.empty());
  EXPECT_EQ(weights("four"), weights_alone);
  EXPECT_EQ(weights("killed"), weights_alone);
}

TEST_F(SumOrder, WhatCannotBeHadIsRefused) {
  const auto expect_refused = [&](int ranks, const std::string& options, const std::string& sentence) {
    const Ending ending = shell(folder_.path(), job(ranks, "--run.dir=refused " + options));
    EXPECT_EQ(ending.status, 2) << ending.err;
    ASSERT_EQ(ending.complaints().size(), 1U) << ending.err;
    EXPECT_EQ(ending.complaints()[0], "llampi: " + sentence);
  };
  // Ahead of the batch, for which 3 ranks would ask a multiple of 3.
  for (const char* batch : {"", "--train.global_batch=8"}) {
    expect_refused(
        3, batch,
        "fsdp.sum_order = tree needs a number of ranks that is a power of two, and there are 3; start 2 or 4 "
        "ranks, or use fsdp.sum_order = any");
  }
  expect_refused(
      2, "--train.micro_batch=auto",
      "fsdp.sum_order = tree needs a train.micro_batch that is a number: as many sequences as fit depends on the "
      "number of ranks");
  expect_refused(2, "--fsdp.reduce_dtype=bfloat16",
                 "fsdp.sum_order = tree needs gradients that are summed in float32; use "
                 "fsdp.reduce_dtype = float32, or fsdp.sum_order = any");
}

}  // namespace
}  // namespace llampi::test
