// `llampi plan` and `llampi inspect --units` as a user meets them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "cli/shell.hpp"
#include "llampi/core/text.hpp"

namespace llampi::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Plan : public ::testing::Test {
 protected:
  Plan() {
    std::filesystem::create_directory(folder_.path() / "model");
    folder_.write("model/config.json", R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 32,
      "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
      "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
      "hidden_act": "silu", "initializer_range": 0.02})");
    folder_.write("run.ini",
                  "[model]\nconfig = model\n[data]\nseq_len = 16\n"
                  "[train]\nmicro_batch = 2\nglobal_batch = 24\n");
  }

  Ending run(const std::string& arguments, const std::string& environment = "") const {
    return shell(folder_.path(), environment + " " + LLAMPI_PROGRAM + " " + arguments);
  }
  Ending plan(const std::string& options) const { return run("plan --config run.ini " + options); }
  nlohmann::json json(const std::string& options, const std::string& environment = "") const {
    const Ending ending = run("plan --config run.ini --json " + options, environment);
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(ending.err, "");
    EXPECT_EQ(std::count(ending.out.begin(), ending.out.end(), '\n'), 1);
    return nlohmann::json::parse(ending.out, nullptr, false);
  }
  void expect_refused(const std::string& options, const std::string& sentence) const {
    const Ending ending = plan(options);
    EXPECT_EQ(ending.status, 2) << options;
    EXPECT_EQ(ending.out, "") << options;
    EXPECT_EQ(ending.err, "llampi: " + sentence + "\n") << options;
  }
  ScratchFolder folder_;
};

TEST_F(Plan, SaysWhatARunSays) {
  folder_.write("text", std::string(2000, 'x'));
  ASSERT_EQ(run("tokenize --tokenizer bytes --output tokens.h5 text").status, 0);
  for (const std::string options : {"", "--fsdp.cpu_offload=optimizer --fsdp.param_dtype=bfloat16"}) {
    const std::string both = "--config run.ini " + options;
    const Ending ran =
        shell(folder_.path(), std::string(MPIRUN) + " -n 3 " + LLAMPI_PROGRAM + " train " + both +
                                  " --train.steps=1 --data.train=tokens.h5 --run.dir=run" +
                                  std::to_string(options.size()));
    ASSERT_EQ(ran.status, 0) << ran.err;
    const Ending planned = run("plan --ranks=3 " + both);
    ASSERT_EQ(planned.status, 0) << planned.err;
    const std::string first = "memory per rank, planned for a step:\n";
    const auto begin = ran.out.find(first), end = ran.out.find("\ndata:");
    ASSERT_TRUE(begin != std::string::npos && end != std::string::npos) << ran.out;
    EXPECT_THAT(planned.out, HasSubstr(ran.out.substr(begin, end - begin)));
    const std::int64_t bytes = json("--ranks=3 " + options)["planned_bytes"];
    EXPECT_THAT(ran.out,
                HasSubstr(fmt::format("planned {}, used {};", format_bytes(bytes), format_bytes(bytes))));
    EXPECT_THAT(planned.out, HasSubstr(fmt::format(" = {} bytes\n", bytes)));
  }
}

TEST_F(Plan, PutsRanksOnNodes) {
  const auto one = json("--ranks 4"), two = json("--ranks 4 --per-node 2"),
             odd = json("--ranks 4 --per-node 3");
  EXPECT_EQ(one["nodes"], 1);
  EXPECT_EQ(one["ranks_per_node"], 4);
  EXPECT_EQ(two["nodes"], 2);
  EXPECT_EQ(odd["nodes"], 2);
  EXPECT_EQ(json("--ranks 4 --per-node 9")["ranks_per_node"], 4);
  EXPECT_EQ(json("")["ranks"], 1);
  const Ending hybrid = plan("--ranks 4 --per-node 2 --fsdp.strategy=HYBRID_SHARD");
  EXPECT_EQ(hybrid.status, 0);
  EXPECT_THAT(hybrid.out,
              HasSubstr("hybrid_shard on 4 ranks, 2 nodes\nshards 0 1 | 2 3; replicas 0 2 | 1 3\n"));
  EXPECT_THAT(plan("--ranks 6 --fsdp.strategy=hybrid_shard --fsdp.shard_group_size=3").out,
              HasSubstr("\nshards 0 1 2 | 3 4 5; replicas 0 3 | 1 4 | 2 5\n"));
}

TEST_F(Plan, TakesThreadsAsARunDoes) {
  const std::string two = "OMP_NUM_THREADS=2";
  EXPECT_EQ(json("--threads 5 --run.threads=3", two)["threads_per_rank"], 5);
  EXPECT_EQ(json("--run.threads=3", two)["threads_per_rank"], 3);
  EXPECT_EQ(json("", two)["threads_per_rank"], 2);
  EXPECT_EQ(json("--ranks 12", "env -u OMP_NUM_THREADS taskset -c 0")["threads_per_rank"], 1);
  EXPECT_LT(json("--threads 1")["planned_bytes"], json("--threads 64")["planned_bytes"]);
}

TEST_F(Plan, ListsUnits) {
  EXPECT_THAT(plan("").out, Not(HasSubstr("shard elements")));
  const Ending units = plan("--units --ranks 3 --fsdp.wrap=modules --fsdp.wrap_modules=LlamaMLP");
  EXPECT_THAT(units.out, ContainsRegex("\nunit .* shard elements .*\nroot .*\nmodel.layers.0.mlp .*\n"));
  EXPECT_THAT(units.out, ContainsRegex("\n3 units, shards each: 3 .*\n$"));
  const auto listed = json("--ranks 3 --optimizer.frozen=embed")["units"];
  ASSERT_EQ(listed.size(), 4U);
  EXPECT_EQ(listed[0]["frozen"], true);
  EXPECT_EQ(listed[1]["frozen"], false);

  const Ending inspected = run("inspect model --units");
  EXPECT_EQ(inspected.status, 0) << inspected.err;
  EXPECT_THAT(inspected.out, StartsWith("unit "));
  EXPECT_THAT(inspected.out, ContainsRegex("\n4 units, shards each: 1 .*\n$"));
  EXPECT_EQ(run("inspect model/config.json --units").out, inspected.out);
  const auto one_shard = nlohmann::json::parse(run("inspect model --units --json").out);
  EXPECT_EQ(one_shard["units"], json("")["units"]);
}

TEST_F(Plan, WarnsOfWhatIsNotBuiltAndChangesNoMemory) {
  const std::string keys =
      "--run.device=CUDA --checkpoint.async=true --log.tensorboard=true --run.watchdog_seconds=60";
  const Ending warned = plan(keys), plain = plan("");
  EXPECT_EQ(warned.status, 0) << warned.err;
  EXPECT_EQ(warned.out, plain.out);
  EXPECT_EQ(plain.err, "");
  EXPECT_EQ(warned.err,
            "llampi: warning: not built yet: run.device = cuda, run.watchdog_seconds = 60, checkpoint.async "
            "= true, "
            "log.tensorboard = true; the plan assumes the CPU device, which computes in float32 and has "
            "workspaces of its own\n");
  expect_refused("--run.share_gpu=true", "run.share_gpu = true (command line) is not built yet; use false");
}

TEST_F(Plan, RefusesWhatARunWouldRefuse) {
  expect_refused("--ranks 5",
                 "train.global_batch = 24 is not a multiple of 5 ranks x train.micro_batch = 2; use a "
                 "multiple of 10");
  expect_refused("--ranks 13",
                 "train.global_batch = 24 is less than 13 ranks x train.micro_batch = 2; make it a "
                 "multiple of that");
  expect_refused("--data.seq_len=65",
                 "data.seq_len = 65 is larger than max_position_embeddings = 64 of model");
  expect_refused(
      "--ranks 4 --fsdp.strategy=hybrid_shard",
      "a hybrid fsdp.strategy with fsdp.shard_group_size = node needs several nodes, and all 4 ranks are "
      "on one; use full_shard, or give a number of ranks");
  expect_refused(
      "--ranks 4 --per-node 3 --fsdp.strategy=hybrid_shard",
      "fsdp.shard_group_size = node needs the same number of ranks on every node, but one has 3 and "
      "another 1; start as many on each");
  expect_refused(
      "--ranks 4 --fsdp.strategy=hybrid_shard --fsdp.shard_group_size=3",
      "fsdp.shard_group_size = 3 does not divide 4 ranks into several equal groups; use a smaller divisor "
      "of the number of ranks, or full_shard");
  for (const char* options :
       {"--model.config=none.json", "--config=none.ini", "--fsdp.wrap=modules",
        "--fsdp.wrap=modules '--fsdp.wrap_modules=('", "'--optimizer.frozen=.'", "'--optimizer.no_decay=('",
        "--fsdp.shard_group_size=few", "--train.steps=1 --train.epochs=1"}) {
    const Ending ending =
        run(std::string("plan ") + (std::string(options).starts_with("--config") ? "" : "--config run.ini ") +
            options);
    EXPECT_EQ(ending.status, 2) << options;
    EXPECT_EQ(ending.out, "") << options;
    EXPECT_THAT(ending.err, StartsWith("llampi: ")) << options;
    EXPECT_EQ(std::count(ending.err.begin(), ending.err.end(), '\n'), 1) << ending.err;
  }
}

TEST_F(Plan, RefusesWrongOptions) {
  expect_refused("--device h100", "device = h100 (command line) is not known; use cpu");
  expect_refused("--ranks 0",
                 "ranks = 0 (command line) is out of range; it must be at least 1 and at most 65536");
  expect_refused("--ranks two", "ranks = two (command line) is not a whole number");
  expect_refused("--per-node=-1", "per-node = -1 (command line) is out of range; it must be at least 0");
  expect_refused("--threads=-1", "threads = -1 (command line) is out of range; it must be at least 0");
  expect_refused("--rank 2", "unknown option --rank on the command line; did you mean --ranks?");
  expect_refused("more", "unexpected argument \"more\"; options are written --section.key=value");
  expect_refused("--units=yes", "the option --units takes no value");
  const Ending nothing = run("plan");
  EXPECT_EQ(nothing.status, 2);
  EXPECT_EQ(
      nothing.err,
      "llampi: model.config is not given; name a Hugging Face config.json or the folder that holds it\n");
}

TEST_F(Plan, InspectsNoUnitsOfWhatIsNoModel) {
  folder_.write("text", "some text");
  ASSERT_EQ(run("tokenize --tokenizer bytes --output tokens.h5 text").status, 0);
  for (const char* file : {"tokens.h5", "none", "none.json", "run.ini"}) {
    const Ending ending = run(std::string("inspect --units ") + file);
    EXPECT_EQ(ending.status, 2) << file;
    EXPECT_EQ(ending.out, "") << file;
    EXPECT_EQ(std::count(ending.err.begin(), ending.err.end(), '\n'), 1) << ending.err;
  }
}

/// Decimal GB per rank of parameters, sharded gradients and optimizer state.
double model_state_gb(const nlohmann::json& plan) {
  const std::set<std::string> roles = {"parameter shard", "master parameters", "exp_avg", "exp_avg_sq",
                                       "sharded gradient"};
  double bytes = 0;
  for (const auto& role : plan["roles"]) {
    if (roles.count(role["role"])) bytes += role["bytes"].get<double>();
  }
  return bytes / 1e9;
}

// 2 bytes per parameter, 2 per gradient, 8 or 4 of moments, over 8 ranks: 16 + 16 + 64 and 140 + 140 + 560 GB
// in the tutorials that round the models to 8 and 70 billion parameters.
TEST_F(Plan, ExpressesTheBudgetsThatTutorialsGive) {
  const std::string shapes = LLAMPI_TEST_DATA "/../input/llama3-";
  const std::string options =
      " --ranks 8 --json --train.global_batch=32 --data.seq_len=2048 --train.micro_batch=4"
      " --activation.checkpointing=full --fsdp.param_dtype=bfloat16 --optimizer.master_dtype=bfloat16"
      " --fsdp.reduce_dtype=bfloat16 --optimizer.gradient_dtype=bfloat16 --optimizer.moment_dtype=";
  const auto budget = [&](const std::string& size, const std::string& moments) {
    const Ending ending = run("plan --model.config=" + shapes + size + options + moments);
    EXPECT_EQ(ending.status, 0) << ending.err;
    return model_state_gb(nlohmann::json::parse(ending.out));
  };
  EXPECT_NEAR(budget("8b", "float32"), 8.03 * (2 + 2 + 8) / 8, 0.01);
  EXPECT_NEAR(budget("8b", "bfloat16"), 8.03 * (2 + 2 + 4) / 8, 0.01);
  EXPECT_NEAR(budget("70b", "float32"), 70.55 * (2 + 2 + 8) / 8, 0.1);
  EXPECT_NEAR(budget("70b", "bfloat16"), 70.55 * (2 + 2 + 4) / 8, 0.1);
}

// The list that takes longest to place, in a few seconds; here with room for slow machines.
TEST_F(Plan, IsQuickForManyRanksAndLayers) {
  folder_.write("large.json", R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 8192,
    "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": false,
    "hidden_act": "silu", "initializer_range": 0.02})");
  const Ending ending = run(
      "plan --config run.ini --json --ranks 512 --per-node 8 --train.global_batch=4096 --data.seq_len=8192 "
      "--model.config=large.json --activation.checkpointing=full --fsdp.strategy=hybrid_shard",
      "timeout 20");
  ASSERT_EQ(ending.status, 0) << ending.err;
  const auto seen = nlohmann::json::parse(ending.out);
  EXPECT_EQ(seen["parameters"], 70'553'706'496);
  EXPECT_EQ(seen["micro_batches"], 4);
  EXPECT_EQ(seen["shard_ranks"], 8);
  EXPECT_EQ(seen["replicas"], 64);
  EXPECT_EQ(seen["nodes"], 64);
}

}  // namespace
}  // namespace llampi::test
