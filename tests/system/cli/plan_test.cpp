// SPDX-License-Identifier: Apache-2.0
// `llampi plan` and `llampi inspect --units` as a user meets them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "llampi/core/text.hpp"
#include "support/shell.hpp"

namespace llampi::test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

using ::testing::StartsWith;

/// A model whose state is most of what it needs.
constexpr const char* kWide = R"({"model_type": "llama", "vocab_size": 4096, "hidden_size": 512,
    "intermediate_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 8, "num_key_value_heads": 8,
    "max_position_embeddings": 64})";

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

// One key/value head with its query head takes 2 MiB for 1000 tokens, 512 KiB for 500.
TEST_F(Plan, SaysThatWholeSequencesHaveNoRoomForDeterministicAttention) {
  folder_.write("model/config.json", R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "max_position_embeddings": 1024})");
  const auto planned = [&](const std::string& options) {
    return plan("--device h100 --fsdp.param_dtype=bfloat16 --run.attention_workspace=1 " + options).out;
  };
  const auto lacks = HasSubstr("deterministic attention of whole sequences: not enough memory is left");
  EXPECT_THAT(planned("--data.seq_len=1000"), lacks);
  EXPECT_THAT(planned("--data.seq_len=500"), Not(lacks));
  EXPECT_THAT(planned("--data.seq_len=1000 --run.deterministic=false"), Not(lacks));
  // Documents in them may be shorter.
  const auto bytes = [&](const std::string& options) -> std::int64_t {
    return json("--device h100 --fsdp.param_dtype=bfloat16 --data.seq_len=1000 " + options)["planned_bytes"];
  };
  const std::string room = " --run.attention_workspace=1", none = " --run.attention_workspace=0";
  EXPECT_GT(bytes("--data.document_mask=true" + room), bytes("--data.document_mask=true" + none));
  EXPECT_EQ(bytes("--data.document_mask=false" + room), bytes("--data.document_mask=false" + none));
}

TEST_F(Plan, SaysWhatARunSays) {
  folder_.write("text", std::string(2000, 'x'));
  ASSERT_EQ(run("tokenize --tokenizer bytes --output tokens.h5 text").status, 0);
  for (const std::string options : {"", "--fsdp.cpu_offload=optimizer --fsdp.param_dtype=bfloat16"}) {
    const std::string both = "--config run.ini " + options;
    const Ending ran =
        shell(folder_.path(), std::string(MPIRUN) + " -n 3 " + LLAMPI_PROGRAM + " train " + both +
                                  " --log.plan=true --train.steps=1 --data.train=tokens.h5 --run.dir=run" +
                                  std::to_string(options.size()));
    ASSERT_EQ(ran.status, 0) << ran.err;
    const Ending planned = run("plan --details --ranks=3 " + both);
    ASSERT_EQ(planned.status, 0) << planned.err;
    const std::string first = "memory per rank, planned for a step:\n";
    const auto begin = ran.out.find(first), end = ran.out.find("\noutput:");
    ASSERT_TRUE(begin != std::string::npos && end != std::string::npos) << ran.out;
    EXPECT_THAT(planned.out, HasSubstr(ran.out.substr(begin, end - begin)));
    const std::int64_t bytes = json("--ranks=3 " + options)["planned_bytes"];
    EXPECT_THAT(ran.out,
                HasSubstr(fmt::format("planned {}, used {};", format_bytes(bytes), format_bytes(bytes))));
    EXPECT_THAT(planned.out, HasSubstr(" = " + count(bytes, "byte") + "\n"));
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
  EXPECT_THAT(
      hybrid.out,
      HasSubstr(
          "hybrid_shard on 4 ranks, 2 nodes\ndevice mesh 2 x 2: 2 shard groups (0 1 | 2 3), 2 replicate groups (0 2 | 1 3)\n"));
  EXPECT_THAT(
      plan("--ranks 6 --fsdp.strategy=hybrid_shard --fsdp.shard_group_size=3").out,
      HasSubstr(
          "\ndevice mesh 2 x 3: 2 shard groups (0 1 2 | 3 4 5), 3 replicate groups (0 3 | 1 4 | 2 5)\n"));
}

TEST_F(Plan, PredictsSecondsWhereItKnowsSpeeds) {
  const std::string ranks = "--ranks 4 --per-node 2 ",
                    speeds = ranks + "--tflops 0.001 --in-node-gb-s 1 --network-gb-s 0.1 ";
  EXPECT_EQ(json(ranks)["predicted"], nullptr);
  EXPECT_THAT(plan(ranks).out, Not(HasSubstr("predicted")));
  const auto listed = json(speeds + "--actions");
  const auto& rows = listed["predicted"]["strategies"];
  ASSERT_EQ(rows.size(), 5U);
  EXPECT_EQ(rows[0]["strategy"], "full_shard");
  EXPECT_EQ(rows[0]["fits"], nullptr);
  for (const auto& row : rows) {
    EXPECT_GT(row["waiting_seconds"], 0.0);
    EXPECT_DOUBLE_EQ(row["step_seconds"].get<double>(),
                     row["compute_seconds"].get<double>() + row["waiting_seconds"].get<double>());
    EXPECT_DOUBLE_EQ(row["tokens_per_second"].get<double>() * row["step_seconds"].get<double>(), 24 * 16);
  }
  double computed = 0;
  for (const auto& action : listed["actions"]) {
    if (action["stream"] == "compute" && !action.contains("ranks"))
      computed += action["seconds"].get<double>();
    if (action["op"] == "unshard") {
      EXPECT_GT(action["seconds"], 0.0);
    }
  }
  EXPECT_NEAR(computed, rows[0]["compute_seconds"].get<double>(), 1e-9);
  EXPECT_THAT(plan(speeds + "--fsdp.strategy=hybrid_shard").out,
              AllOf(HasSubstr("\nseconds of a step, predicted; * as configured\n"),
                    ContainsRegex("\n  full_shard  .*%"), ContainsRegex("\n\\* hybrid_shard  .*%")));
  // Keys of strategies with replicas or groups are left out of the others.
  for (const std::string key :
       {"no_shard --fsdp.shard_optimizer_over_replicas=true", "hybrid_shard --fsdp.shard_group_size=2"})
    EXPECT_EQ(json(speeds + "--fsdp.strategy=" + key)["predicted"]["strategies"].size(), 5U) << key;
  // On one node there is no hybrid_shard, and no network.
  EXPECT_EQ(json("--ranks 2 --tflops 1 --in-node-gb-s 1")["predicted"]["strategies"].size(), 3U);
  EXPECT_THAT(plan(speeds + "--device cuda --memory 4").out, Not(HasSubstr("does not fit")));
  EXPECT_THAT(plan(speeds + "--device cuda --memory 0.5").out,
              ContainsRegex("\n  no_shard .* [0-9,]+  does not fit\n"));
  expect_refused(
      ranks + "--network-gb-s 1",
      "--in-node-gb-s, --network-gb-s and --latency-us need the speed of computation; add --tflops, or --machine");
  expect_refused(ranks + "--tflops 1 --network-gb-s 1",
                 "--tflops with several ranks on a node needs the speed of their links; add --in-node-gb-s");
  expect_refused(ranks + "--tflops 1 --in-node-gb-s 1",
                 "--tflops with several nodes needs the speed of their network; add --network-gb-s");
}

TEST_F(Plan, PredictsTheTimeOfAStepOnAMachine) {
  const auto step = json("--ranks 4 --per-node 2 --machine h100 --tokens 1B")["step_time"];
  EXPECT_EQ(step["machine"], "h100");
  const auto seconds = [&](const char* part) { return step[part].get<double>(); };
  EXPECT_GT(seconds("product_seconds"), 0);
  EXPECT_GT(seconds("attention_seconds"), 0);
  EXPECT_GT(seconds("exposed_seconds"), 0);
  EXPECT_NEAR(seconds("product_seconds") + seconds("attention_seconds") + seconds("memory_bound_seconds") +
                  seconds("kernel_seconds") + seconds("recomputation_seconds") +
                  seconds("optimizer_seconds") + seconds("slowdown_seconds") + seconds("exposed_seconds"),
              seconds("step_seconds"), 1e-6 * seconds("step_seconds"));
  const auto by_nccl = json("--ranks 4 --per-node 2 --machine h100 --fsdp.reduction=nccl")["step_time"];
  EXPECT_GT(seconds("step_seconds"), by_nccl["step_seconds"].get<double>())
      << "sums of what other ranks send";
  EXPECT_DOUBLE_EQ(seconds("budget_days") * 24 * 4, seconds("budget_device_hours"));
  EXPECT_DOUBLE_EQ(seconds("budget_days") * 86400 * seconds("tokens_per_second"), 1e9);
  const Ending ending = plan("--machine h100 --tokens 1e9");
  EXPECT_THAT(
      ending.out,
      AllOf(HasSubstr("\ntime of a step as configured, predicted for h100\n  matrix products  "),
            HasSubstr(" tokens/s, "), ContainsRegex("\n  1 billion tokens: .* days, .* GPU-hours\n")));
  EXPECT_THAT(ending.out, HasSubstr("\ndevice h100, "));
  EXPECT_EQ(json("")["step_time"], nullptr);
  // What is given counts more than what the machine's file says.
  const auto slow = json("--ranks 4 --per-node 2 --machine h100 --network-gb-s 0.001")["step_time"];
  EXPECT_GT(slow["step_seconds"].get<double>(), 2 * seconds("step_seconds"));
  EXPECT_EQ(json("--machine h100 --tflops 1")["step_time"], nullptr);
  expect_refused("--machine h1000",
                 "there is no machine file \"h1000\"; give the path of one, or one of h100, "
                 "h200, a100, workstation-2-cores");
  expect_refused("--machine h100 --device cpu",
                 "--machine h100 has the figures of GPUs, but the plan is for --device cpu; make them "
                 "agree");
  expect_refused("--tokens 1e9", "--tokens needs the figures of a machine; add --machine");
  expect_refused("--machine h100 --tokens 15X",
                 "--tokens 15X is not known; use a number of tokens such as 15T, 300B or 1e11");
  expect_refused("--machine h100 --tokens 0.5",
                 "--tokens 0.5 is not known; use a number of tokens such as 15T, 300B or 1e11");
}

/// A GPU alone on its node has its own NIC, and ranks on CPUs have no more cores than there are.
TEST_F(Plan, GivesNoRankMoreThanItsPartOfAMachine) {
  const auto seconds = [&](const std::string& arguments) {
    return json(arguments)["step_time"]["step_seconds"].get<double>();
  };
  const auto between = [&](const std::string& arguments) {
    return json(arguments)["predicted"]["between_nodes_bytes_per_second"].get<double>();
  };
  EXPECT_DOUBLE_EQ(between("--ranks 2 --per-node 1 --machine h100"), 50e9);
  EXPECT_DOUBLE_EQ(between("--ranks 16 --per-node 8 --machine h100 --train.global_batch=32"), 50e9);
  EXPECT_DOUBLE_EQ(
      between("--ranks 8 --per-node 4 --machine h100 --network-gb-s 200 --train.global_batch=16"), 50e9)
      << "nodes of 4 GPUs";
  EXPECT_THAT(plan("--ranks 16 --machine h100 --train.global_batch=32").err,
              HasSubstr("warning: all 16 GPUs are taken to be on one node"));
  const std::string cpus = " --train.global_batch=8 --machine workstation-2-cores";
  EXPECT_GE(seconds("--ranks 4" + cpus), 0.8 * seconds("--ranks 2" + cpus))
      << "but for the fixed time of kernels";
}

TEST_F(Plan, TakesThreadsAsARunDoes) {
  const std::string two = "OMP_NUM_THREADS=2";
  EXPECT_EQ(json("--threads 5 --run.threads=3", two)["threads_per_rank"], 5);
  EXPECT_EQ(json("--run.threads=3", two)["threads_per_rank"], 3);
  EXPECT_EQ(json("", two)["threads_per_rank"], 2);
  EXPECT_EQ(json("--ranks 12", "env -u OMP_NUM_THREADS taskset -c 0")["threads_per_rank"], 1);
  // A machine's figures are of its own cores, not of those of the computer that plans.
  std::ifstream file(LLAMPI_TEST_DATA "/../input/machines/workstation-2-cores.json");
  auto large = nlohmann::json::parse(file);
  large["cores"] = 64;
  folder_.write("large.json", large.dump());
  EXPECT_EQ(json("--ranks 2 --machine large.json", two)["threads_per_rank"], 32);
  EXPECT_EQ(json("--ranks 2 --threads 1 --machine large.json", two)["threads_per_rank"], 1);
  EXPECT_LT(json("--threads 1")["planned_bytes"], json("--threads 64")["planned_bytes"]);
}

// With one unit gathered at a time, unit 1 (block 0) is gathered again for its backward pass.
TEST_F(Plan, ListsActionsWithTheirOperands) {
  const std::string options = "--ranks 2 --per-node 2 --threads 1 --fsdp.limit_all_gathers=1 ";
  const Ending ending = plan(options + "--actions");
  ASSERT_EQ(ending.status, 0) << ending.err;
  EXPECT_THAT(ending.out, ::testing::StartsWith(plan(options).out));
  EXPECT_THAT(ending.out, HasSubstr("\n     0  h2d         h2d inputs mb0\n"
                                    "        write   output             inputs #"));
  EXPECT_THAT(ending.out, HasSubstr("unshard     unshard mb0 unit 1 (model.layers.0) bwd, after "));
  EXPECT_THAT(ending.out, HasSubstr("        write   output             unsharded parameters #"));
  EXPECT_THAT(ending.out, HasSubstr("backward mb0 layer 1 (model.layers.0.self_attn)"));
  EXPECT_THAT(ending.out, ::testing::ContainsRegex("write   parameter_gradient unsharded gradient #[0-9]+ "
                                                   "model.layers.0, 5 parts, [0-9.]+ KiB\n"));
  EXPECT_THAT(ending.out, HasSubstr("  compute     norm, after "));

  EXPECT_FALSE(json(options).contains("actions"));
  const auto listed = json(options + "--actions");
  ASSERT_EQ(listed["actions"].size(), listed["step_actions"]);
  std::int64_t gathered = 0;
  for (const auto& action : listed["actions"]) {
    if (action["op"] == "unshard") gathered += action["bytes"].get<std::int64_t>();
    for (const auto& operand : action["operands"]) {
      const auto& buffer = listed["buffers"].at(operand["buffer"].get<std::size_t>());
      EXPECT_LE(buffer["offset"].get<std::int64_t>() + buffer["bytes"].get<std::int64_t>(),
                listed["arenas"][buffer["arena"].get<std::string>()]["step_bytes"]);
      EXPECT_TRUE(buffer["kept"].get<bool>() || !buffer["live"].empty()) << buffer;
    }
  }
  EXPECT_EQ(gathered, listed["traffic"]["gathered_bytes"]);
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

TEST_F(Plan, PlansForTheDeviceOfTheConfiguration) {
  EXPECT_EQ(json("")["device"], "cpu");
  EXPECT_EQ(json("--run.device=cpu")["device"], "cpu");
  EXPECT_EQ(json("--run.device=cuda")["device"], "cuda");
  EXPECT_EQ(json("--run.device=cuda --device cpu")["device"], "cpu");
  EXPECT_EQ(json("--run.device=cuda"), json("--device cuda"));
}

TEST_F(Plan, OfAGpuHasItsSizesAndWhatElseItTakes) {
  const auto cpu = json("--ranks 2"), gpu = json("--ranks 2 --device cuda"),
             h100 = json("--ranks 2 --device H100");
  EXPECT_EQ(cpu["param_dtype"], "float32");
  EXPECT_EQ(gpu["param_dtype"], "bfloat16");
  EXPECT_EQ(gpu["compute_dtype"], "bfloat16");
  EXPECT_EQ(gpu["reduce_dtype"], "float32");
  EXPECT_EQ(gpu["gradient_dtype"], "float32");
  const auto has_role = [](const nlohmann::json& plan, const char* role) {
    return std::any_of(plan["roles"].begin(), plan["roles"].end(),
                       [&](const auto& row) { return row["role"] == role && row["bytes"] > 0; });
  };
  EXPECT_TRUE(has_role(gpu, "shared workspace"));  // cuBLASLt's
  EXPECT_FALSE(has_role(cpu, "shared workspace"));
  EXPECT_TRUE(has_role(cpu, "collective workspace"));
  EXPECT_TRUE(has_role(gpu, "collective workspace"));

  EXPECT_EQ(cpu["context_bytes"], 0);
  EXPECT_EQ(cpu["communicator_bytes"], 0);
  EXPECT_EQ(cpu["needed_bytes"], cpu["planned_bytes"].get<std::int64_t>() + (64 << 20));
  EXPECT_GT(gpu["communicator_bytes"], 0);
  EXPECT_EQ(json("--device cuda")["communicator_bytes"], 0);  // one rank
  const auto communicators = [&](const std::string& options) {
    return json("--device cuda " + options)["communicator_bytes"].get<std::int64_t>() >> 20;
  };
  constexpr std::int64_t kRings = 240, kPeer = 320, kNetwork = 128;  // MiB
  EXPECT_EQ(communicators("--ranks 2"), 2 * kRings + kPeer);
  EXPECT_EQ(communicators("--ranks 2 --fsdp.reduction=nccl"), 2 * kRings);
  EXPECT_EQ(communicators("--ranks 6"), 2 * kRings + 5 * kPeer);
  EXPECT_EQ(communicators("--ranks 12 --per-node 6"), 2 * kRings + 5 * kPeer / 8 + kNetwork);
  // And one of the replicas.
  EXPECT_EQ(communicators("--ranks 4 --fsdp.strategy=hybrid_shard --fsdp.shard_group_size=2"),
            3 * kRings + 2 * kPeer);
  EXPECT_EQ(communicators("--ranks 4 --per-node 2 --fsdp.strategy=hybrid_shard"),
            3 * kRings + kPeer + kNetwork);
  EXPECT_EQ(cpu["loaded_later_bytes"], 0);
  EXPECT_EQ(gpu["context_bytes"], 543 << 20);  // as measured
  EXPECT_EQ(gpu["loaded_later_bytes"], 180 << 20);
  EXPECT_EQ(gpu["graph_bytes"], 96'000'000);
  EXPECT_EQ(cpu["graph_bytes"], 0);
  for (const char* option : {"--run.cuda_graph=off", "--fsdp.cpu_offload=optimizer --fsdp.offload_step=host"})
    EXPECT_EQ(json(std::string("--device cuda ") + option)["graph_bytes"], 0) << option;
  EXPECT_EQ(gpu["needed_bytes"],
            gpu["arenas"]["device"]["planned_bytes"].get<std::int64_t>() +
                gpu["context_bytes"].get<std::int64_t>() + gpu["loaded_later_bytes"].get<std::int64_t>() +
                gpu["graph_bytes"].get<std::int64_t>() + gpu["communicator_bytes"].get<std::int64_t>());
  EXPECT_EQ(gpu["device_memory_bytes"], nullptr);
  EXPECT_EQ(gpu["fits"], nullptr);
  EXPECT_EQ(h100["device"], "h100");
  EXPECT_EQ(h100["device_memory_bytes"], std::int64_t{80998} << 20);
  EXPECT_EQ(h100["fits"], true);
  EXPECT_EQ(json("--memory 3.5")["device_memory_bytes"], std::int64_t{7} << 29);

  const std::string table = plan("--details --ranks 2 --device h100").out;
  EXPECT_THAT(table,
              HasSubstr("all-gather and compute in bfloat16; gradients reduced and accumulated in float32; "
                        "master parameters and moments in float32\n"));
  EXPECT_THAT(table, ContainsRegex("\n  CUDA context, its libraries +543.00 MiB +, measured on one H100\n"));
  EXPECT_THAT(table,
              ContainsRegex("\n  NCCL's communicators +[0-9.]+ MiB +, an estimate, not measured yet\n"));
  EXPECT_THAT(table, ContainsRegex("\nfits: needs about [0-9.]+ [MG]iB per GPU, an h100 has 79.10 GiB\n"));
  // The table adds up to what is compared with the memory there is.
  for (const char* options :
       {"--ranks 2 --device h100", "--ranks 2 --device h100 --fsdp.cpu_offload=optimizer",
        "--ranks 2 --memory 3.5", "--ranks 2 --memory 3.5 --fsdp.cpu_offload=params"}) {
    const std::string report = plan(options).out, title = "needs about ";
    const auto at = report.find(title) + title.size();
    EXPECT_THAT(report, ContainsRegex("\n  total +[0-9.]+ [MG]iB +" +
                                      report.substr(at, report.find(" per ", at) - at) + "[ \n]"))
        << options;
  }
  // And its host column, times the ranks of the node, to what is compared with the node's.
  const auto offloaded = json("--ranks 2 --device h100 --fsdp.cpu_offload=optimizer");
  const std::string report = plan("--ranks 2 --device h100 --fsdp.cpu_offload=optimizer").out;
  EXPECT_THAT(report,
              ContainsRegex("\n  total .* " +
                            format_bytes(offloaded["host_needed_bytes"].get<std::int64_t>() / 2) + "\n"));
  EXPECT_THAT(plan("--ranks 2 --device cuda").out, ContainsRegex("\nneeds about [0-9.]+ [MG]iB per GPU\n"));
  EXPECT_THAT(plan("--details --ranks 2").out, Not(HasSubstr("CUDA")));
}

// Bytes that gradients in bfloat16 would save, and ranks between which sums have no order, are no way out.
TEST_F(Plan, OfSumsInOneOrderNamesWhatFitsWithThem) {
  folder_.write("wide.json", kWide);
  const std::string tree = " --fsdp.sum_order=tree --model.config=wide.json --memory 0.5";
  const Ending on_cpus = plan("--ranks 2" + tree);
  EXPECT_EQ(on_cpus.status, 2);
  EXPECT_THAT(on_cpus.err, ::testing::AllOf(StartsWith("llampi: needs "), Not(HasSubstr("gradient_dtype"))));
  const Ending on_gpus = plan("--ranks 1 --device h100 --fsdp.reduction=nccl" + tree);
  EXPECT_EQ(on_gpus.status, 2);
  EXPECT_THAT(on_gpus.err, ::testing::AllOf(StartsWith("llampi: needs "), Not(HasSubstr("it would fit on"))));
}

TEST_F(Plan, NamesTheLongestSequencesThatFit) {
  std::string wide = kWide;
  wide.replace(wide.find("64}"), 3, "65536}");
  folder_.write("long.json", wide);
  const std::string options =
      "--model.config=long.json --activation.checkpointing=none --data.seq_len=100 --memory ";
  const auto fits = [&](const std::string& memory, std::int64_t seq_len) {
    return plan(options + memory + " --data.seq_len=" + std::to_string(seq_len)).status == 0;
  };
  const std::int64_t longest = json(options + "4")["longest_seq_len"];
  EXPECT_GT(longest, 128);
  EXPECT_LT(longest, 65536);
  EXPECT_EQ(longest % 128, 0);
  EXPECT_TRUE(fits("4", longest));
  EXPECT_FALSE(fits("4", longest + 128));
  EXPECT_THAT(plan(options + "4").out, HasSubstr("\nlongest data.seq_len that fits, other keys unchanged: " +
                                                 with_separators(longest) + " tokens\n"));
  const auto large = json(options + "2000");
  EXPECT_EQ(large["longest_seq_len"], 65536);
  EXPECT_EQ(large["max_positions"], 65536);
  EXPECT_EQ(large["fits_on_device"], true);
  EXPECT_EQ(large["fits_on_host"], nullptr);
  EXPECT_THAT(plan(options + "2000").out,
              HasSubstr(": 65,536 tokens, the model's max_position_embeddings\n"));
  EXPECT_EQ(json("--ranks 2")["longest_seq_len"], nullptr);

  // What `auto` decides by the memory that is left is decided for the longer ones, too.
  const std::string decided =
      "--model.config=long.json --activation.checkpointing=auto --memory 4 --data.seq_len=";
  const std::int64_t with_auto = json(decided + "128")["longest_seq_len"];
  EXPECT_GT(with_auto, longest);
  EXPECT_EQ(json(decided + std::to_string(longest))["longest_seq_len"], with_auto);
  EXPECT_EQ(plan(decided + std::to_string(with_auto)).status, 0);
  EXPECT_EQ(plan(decided + std::to_string(with_auto + 128)).status, 2);

  // Many micro-batches need more than the few with which it is searched.
  const std::string many =
      "--model.config=long.json --train.micro_batch=1 --train.global_batch=1024 --memory 4 --device h100 "
      "--data.seq_len=";
  const std::int64_t with_many = json(many + "128")["longest_seq_len"];
  EXPECT_EQ(plan(many + std::to_string(with_many)).status, 0);
  EXPECT_EQ(plan(many + std::to_string(with_many + 128)).status, 2);
}

// Each piece of advice is tried: with it the plan fits, without it it does not.
TEST_F(Plan, OfProductsIn8BitsGathersHalfAndKeepsLessOfActivations) {
  const std::string ranks = "--ranks 2 --device h100";
  const auto bfloat16 = json(ranks), fp8 = json(ranks + " --fsdp.product_dtype=fp8");
  EXPECT_EQ(bfloat16["product_dtype"], "bfloat16");
  EXPECT_EQ(fp8["product_dtype"], "fp8");
  const auto bytes_of = [](const nlohmann::json& plan, const std::string& role) {
    std::int64_t bytes = 0;
    for (const auto& row : plan["roles"]) bytes += row["role"] == role ? row["bytes"].get<std::int64_t>() : 0;
    return bytes;
  };
  EXPECT_LT(bytes_of(fp8, "saved activation"), bytes_of(bfloat16, "saved activation"));
  EXPECT_LT(fp8["traffic"]["gathered_bytes"], bfloat16["traffic"]["gathered_bytes"]);
  EXPECT_THAT(plan(ranks + " --fsdp.product_dtype=fp8").out,
              HasSubstr("\nall-gather and matrix products of the blocks in FP8 (float8_e4m3fn)\n"));
  expect_refused(
      "--device a100 --fsdp.product_dtype=fp8",
      "fsdp.product_dtype = fp8 needs a GPU of compute capability 8.9 or newer (Ada, Hopper, Blackwell), and a100 has "
      "8.0; use fsdp.product_dtype = auto");
  EXPECT_EQ(json("--device l40s --fsdp.product_dtype=fp8")["product_dtype"], "fp8");
  folder_.write("wide.json", kWide);
  const std::string blocks =
      " --fsdp.product_dtype=fp8 --fsdp.fp8_scales=block --model.config=wide.json --data.seq_len=64";
  EXPECT_EQ(json("--device h100" + blocks)["fp8_scales"], "block");
  EXPECT_EQ(fp8["fp8_scales"], "tensor");
  EXPECT_EQ(bfloat16["fp8_scales"], nullptr);
  expect_refused(
      "--device l40s" + blocks,
      "fsdp.fp8_scales = block needs a GPU of compute capability 9.0 (Hopper), and l40s has 8.9; use "
      "fsdp.fp8_scales = tensor");
  // What would make it fit is looked for among what goes with it.
  const Ending large = plan("--device h100 --memory 0.0001 --fsdp.product_dtype=fp8");
  EXPECT_EQ(large.status, 2);
  EXPECT_THAT(large.err, ::testing::AllOf(StartsWith("llampi: needs "), Not(HasSubstr("params"))));
}

TEST_F(Plan, SaysWhatWouldMakeItFit) {
  const auto mib_needed = [&](const std::string& options) {
    return json(options)["needed_bytes"].get<double>() / 0x1p20;
  };
  const auto advice = [&](const std::string& options, double mib) {
    const Ending ending = plan(fmt::format("{} --memory {}", options, mib / 1024));
    EXPECT_EQ(ending.status, 2) << options;
    EXPECT_THAT(
        ending.out,
        ContainsRegex(
            "\ndoes not fit: needs about [0-9.]+ [MG]iB per (GPU|rank), a (GPU|rank) has [0-9.]+ [MG]iB \\(--memory\\)\n"));
    EXPECT_EQ(std::count(ending.err.begin(), ending.err.end(), '\n'), 1) << ending.err;
    EXPECT_THAT(ending.err, StartsWith("llampi: needs "));
    return ending.err.substr(ending.err.find("; ", ending.err.find("largest buffers: ")) + 2);
  };
  const std::string run = "--device cuda --data.seq_len=64 --fsdp.param_dtype=float32 --train.micro_batch=";
  const std::string recomputing = run + "1 --activation.checkpointing=full";
  const double all = mib_needed(run + "8"), smaller = mib_needed(run + "4"), one = mib_needed(run + "1"),
               full = mib_needed(recomputing),
               feed_forward = mib_needed(run + "1 --activation.checkpointing=feed_forward"),
               offloaded = mib_needed(recomputing + " --fsdp.cpu_offload=params");
  ASSERT_LT(smaller, all);
  ASSERT_LT(full, one);
  ASSERT_LT(offloaded, full);
  EXPECT_EQ(advice(run + "8", (smaller + all) / 2), "it would fit with train.micro_batch = 4\n");
  // No more recomputation than is needed.
  ASSERT_LT(full + 0.01, feed_forward);
  ASSERT_LT(feed_forward, (full + one) / 2);
  EXPECT_EQ(advice(run + "1", (full + one) / 2),
            "it would fit with activation.checkpointing = feed_forward 1, selective\n");
  EXPECT_EQ(advice(run + "1", full + 0.01),
            "it would fit with activation.checkpointing = full 1, feed_forward\n");
  // As many changes as are needed, and no more.
  ASSERT_LT(mib_needed(run + "1 --fsdp.cpu_offload=optimizer"), (offloaded + full) / 2);
  const std::string host = " \\(at least [0-9.]+ [KMG]iB of host memory per rank\\)\n$";
  EXPECT_THAT(
      advice(run + "8", (offloaded + full) / 2),
      ContainsRegex("^it would fit with train.micro_batch = 1 and fsdp.cpu_offload = optimizer" + host));
  ASSERT_LT(offloaded + 0.01, mib_needed(run + "1 --fsdp.cpu_offload=params"));
  EXPECT_THAT(
      advice(run + "8", offloaded + 0.01),
      ContainsRegex(
          "^it would fit with train.micro_batch = 1 and activation.checkpointing = full 1, feed_forward and fsdp.cpu_offload = params" +
          host));
  // Of what is unsharded, on several ranks.
  folder_.write("large-blocks.json", R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 512,
    "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8,
    "max_position_embeddings": 64})");
  const std::string sharded =
      "--ranks 64 --device cuda --model.config=large-blocks.json --data.seq_len=64 --train.micro_batch=1 "
      "--train.global_batch=64 --activation.checkpointing=full";
  const std::string parts =
      "fsdp.wrap_modules = LlamaDecoderLayer embed_tokens LlamaAttention LlamaMLP lm_head";
  const double two_units = mib_needed(sharded),
               one_unit = mib_needed(sharded + " --fsdp.limit_all_gathers=1"),
               one_part = mib_needed(
                   sharded +
                   " --fsdp.limit_all_gathers=1 --fsdp.wrap=modules --fsdp.wrap_modules='LlamaDecoderLayer "
                   "embed_tokens LlamaAttention LlamaMLP lm_head'");
  ASSERT_LT(one_unit, two_units);
  ASSERT_LT(one_part, one_unit);
  EXPECT_EQ(advice(sharded, one_unit + 0.01), "it would fit with fsdp.limit_all_gathers = 1\n");
  EXPECT_EQ(advice(sharded, one_part + 0.01),
            "it would fit with fsdp.limit_all_gathers = 1 and fsdp.wrap = modules and " + parts + "\n");
  // Where nothing on one rank helps: more ranks of a model whose state is most of it.
  folder_.write("wide.json", kWide);
  const std::string wide = "--model.config=wide.json --train.micro_batch=1 --activation.checkpointing=full";
  EXPECT_EQ(advice(wide, mib_needed(wide + " --optimizer.moment_dtype=bfloat16") + 1),
            "it would fit with optimizer.moment_dtype = bfloat16\n");
  const std::string narrow =
      " --optimizer.moment_dtype=bfloat16 --optimizer.gradient_dtype=bfloat16 --fsdp.reduce_dtype=bfloat16";
  EXPECT_EQ(advice(wide + narrow, mib_needed(wide + narrow + " --ranks 4") + 1),
            "it would fit on 4 ranks with at most 1 per node\n");
  // 6 samples cannot be divided among 4 ranks.
  EXPECT_EQ(advice(wide + narrow + " --train.global_batch=6", mib_needed(wide + narrow + " --ranks 4") + 1),
            "it would fit on 4 ranks with at most 1 per node and a global batch of 8 sequences\n");
  // What is accumulated on one rank is one micro-batch on each of four.
  const std::string accumulated = wide + narrow + " --train.global_batch=4";
  const double at_once = mib_needed(accumulated + " --ranks 4");
  ASSERT_LT(at_once + 0.01, mib_needed(wide + narrow + " --ranks 4 --train.global_batch=16"));
  EXPECT_EQ(advice(accumulated, at_once + 0.01), "it would fit on 4 ranks with at most 1 per node\n");
  EXPECT_THAT(advice(wide, 1), StartsWith("neither 64 times as many ranks nor smaller micro-batches"));

  const Ending ending = plan(wide + " --memory 0.4");
  EXPECT_THAT(
      ending.err,
      ContainsRegex(
          "needs [0-9.]+ MiB per rank, but a rank has 409.60 MiB \\(--memory\\); largest buffers: [a-z_ ]+ [0-9.]+ "
          "MiB, [a-z_ ]+ [0-9.]+ MiB, [a-z_ ]+ [0-9.]+ MiB; it would fit on [0-9]+ ranks"));
  EXPECT_EQ(nlohmann::json::parse(plan(wide + " --memory 0.4 --json").out)["fits"], false);
}

// Offload is no help where the host has no room for it.
TEST_F(Plan, LooksAtTheHostsMemoryWhereItIsGiven) {
  folder_.write("wide.json", kWide);
  const std::string wide =
      "--ranks 2 --device cuda --model.config=wide.json --train.micro_batch=1 "
      "--activation.checkpointing=full";
  const std::string offload = " --fsdp.cpu_offload=optimizer";
  const auto all = json(wide), offloaded = json(wide + offload);
  EXPECT_EQ(offloaded["host_memory_bytes"], nullptr);
  EXPECT_EQ(offloaded["host_needed_bytes"],
            2 * (offloaded["arenas"]["host"]["planned_bytes"].get<std::int64_t>() + (64 << 20)));
  const auto gib = [](const nlohmann::json& bytes) { return bytes.get<double>() / 0x1p30; };
  const std::string memory = fmt::format(" --memory {}", gib(offloaded["needed_bytes"]) + 0.001);
  ASSERT_GT(gib(all["needed_bytes"]), gib(offloaded["needed_bytes"]) + 0.001);
  const double host = gib(offloaded["host_needed_bytes"]);
  const std::string enough = fmt::format(" --host-memory {}", host + 0.001),
                    less = fmt::format(" --host-memory {}", host - 0.001);
  const std::string advice =
      fmt::format("; it would fit with fsdp.cpu_offload = optimizer (at least {} of host memory per rank)\n",
                  format_bytes(offloaded["arenas"]["host"]["planned_bytes"].get<std::int64_t>()));
  for (const auto& room : {std::string(), enough})
    EXPECT_THAT(plan(wide + memory + room).err, EndsWith(advice));
  EXPECT_THAT(plan(wide + memory + less).err, Not(HasSubstr("fsdp.cpu_offload = optimizer (")));

  const Ending fits = plan(wide + offload + memory + enough), does_not = plan(wide + offload + memory + less);
  EXPECT_EQ(fits.status, 0) << fits.err;
  EXPECT_THAT(
      fits.out,
      ContainsRegex(
          "\nfits: needs about [0-9.]+ [MG]iB per GPU, a GPU has [0-9.]+ [MG]iB \\(--memory\\); narrowly: [^\n]*\n"
          "host memory fits: needs about [0-9.]+ [MG]iB per node, which has "));
  EXPECT_EQ(does_not.status, 2);
  EXPECT_THAT(does_not.out, HasSubstr("\nhost memory does not fit: needs about "));
  EXPECT_THAT(does_not.err,
              ContainsRegex("^llampi: needs [0-9.]+ [MG]iB of host memory per node, but a node has "
                            "[0-9.]+ [MG]iB; largest buffers: "));
  // On CPUs the ranks of a node share it.
  EXPECT_EQ(json("--ranks 4 --per-node 2 --host-memory 3")["device_memory_bytes"], std::int64_t{3} << 29);
  expect_refused("--memory 1 --host-memory 3",
                 "--memory and --host-memory are the same memory on CPUs; give one of them");
  expect_refused("--device cuda --host-memory 3",
                 "--host-memory needs to know the GPUs too; add --memory, or name them with --device");
}

// What is `auto` is decided by the memory that the report compares with.
TEST_F(Plan, DecidesByTheHostMemoryOfCpus) {
  const std::string ranks = "--ranks 4 --per-node 2 --data.seq_len=64 --train.global_batch=256 ",
                    checkpointing = ranks + "--train.micro_batch=64 --activation.checkpointing=",
                    micro_batch = ranks + "--train.micro_batch=";
  const auto needed = [&](const std::string& options) {
    return json(options)["needed_bytes"].get<std::int64_t>();
  };
  const auto host = [](double rank_bytes) {
    return fmt::format(" --host-memory {}", 2 * rank_bytes / 0x1p30);
  };

  const std::int64_t most = needed(checkpointing + "none"), least = needed(checkpointing + "full");
  ASSERT_LT(least, most);
  const auto enough = json(checkpointing + "auto" + host(static_cast<double>(most)));
  EXPECT_EQ(enough["checkpointing"], "none");
  EXPECT_EQ(enough["fits"], true);
  for (const double bytes :
       {static_cast<double>(most - 1), static_cast<double>(least + most) / 2, static_cast<double>(least)}) {
    const auto plan = json(checkpointing + "auto" + host(bytes));
    EXPECT_NE(plan["checkpointing"], "none") << bytes;
    EXPECT_EQ(plan["fits"], true) << bytes;
    // It is the memory that --memory would have given.
    const auto same = json(checkpointing + fmt::format("auto --memory {}", bytes / 0x1p30));
    EXPECT_EQ(plan["checkpointing"], same["checkpointing"]) << bytes;
    EXPECT_EQ(plan["needed_bytes"], same["needed_bytes"]) << bytes;
  }
  // Where nothing fits, it says so: not even a process alone has room in half of that.
  EXPECT_EQ(plan(checkpointing + "auto" + host(static_cast<double>(least) / 2)).status, 2);

  const auto whole = json(micro_batch + "auto"), half = json(micro_batch + "32");
  ASSERT_EQ(whole["micro_batch"], 64);
  ASSERT_LT(half["needed_bytes"], whole["needed_bytes"]);
  const auto smaller = json(micro_batch + "auto" + host(half["needed_bytes"].get<double>()));
  EXPECT_EQ(smaller["micro_batch"], 32);
  EXPECT_EQ(smaller["fits"], true);
}

// What docs/memory.md says about the shapes that come with the program.
TEST_F(Plan, OfTheLlamasThatComeWithTheProgram) {
  const std::string input = LLAMPI_TEST_DATA "/../input/";
  std::filesystem::create_directory_symlink(input, folder_.path() / "input");
  const auto planned = [&](const std::string& options) {
    const Ending ending = run("plan --json --config input/llama3-" + options);
    EXPECT_EQ(ending.err, "");
    EXPECT_EQ(ending.status, 0);
    return nlohmann::json::parse(ending.out);
  };
  const auto gib = [](const nlohmann::json& plan) { return plan["needed_bytes"].get<double>() / 0x1p30; };
  EXPECT_EQ(planned("8b.ini --ranks 8")["device"], "cuda");
  EXPECT_EQ(planned("8b.ini --ranks 8 --device h100")["fits"], true);
  EXPECT_EQ(planned("8b-chat.ini --ranks 8 --device h100")["fits"], true);
  // All of it on one GPU, with no whole block recomputed and room for attention in pieces.
  const auto alone = planned(
      "8b.ini --ranks 1 --device h100 --train.global_batch 2 --optimizer.moment_dtype bfloat16 "
      "--optimizer.master_dtype bfloat16 --optimizer.gradient_dtype bfloat16 --fsdp.reduce_dtype bfloat16 "
      "--activation.checkpointing auto");
  EXPECT_EQ(alone["fits"], true);
  EXPECT_THAT(alone["checkpointing"].get<std::string>(), StartsWith("offload "));
  EXPECT_EQ(alone["recomputed"], 0.0);
  EXPECT_EQ(alone["offload_residuals"], true);
  const auto on_poor_host = planned(
      "8b.ini --ranks 1 --device h100 --host-memory 2 --train.global_batch 2 --optimizer.moment_dtype bfloat16 "
      "--optimizer.master_dtype bfloat16 --optimizer.gradient_dtype bfloat16 --fsdp.reduce_dtype bfloat16 "
      "--activation.checkpointing auto");
  EXPECT_EQ(on_poor_host["offload_residuals"], false);
  const std::string page = read_text(LLAMPI_TEST_DATA "/../docs/memory.md");
  EXPECT_THAT(page, AllOf(HasSubstr(fmt::format("chooses `{}`", alone["checkpointing"].get<std::string>())),
                          HasSubstr(fmt::format("without that, `{}`, {:.1f} %",
                                                on_poor_host["checkpointing"].get<std::string>(),
                                                100 * on_poor_host["recomputed"].get<double>()))));
  EXPECT_GT(on_poor_host["recomputed"], alone["recomputed"]);
  EXPECT_GE(alone["attention_workspace_bytes"], std::int64_t{1} << 30);
  EXPECT_THAT(page,
              HasSubstr(fmt::format("about {:.0f} GiB of each of 8 H100", gib(planned("8b.ini --ranks 8")))));
  EXPECT_THAT(page, HasSubstr(fmt::format("about {:.0f} GiB of each of 64",
                                          gib(planned("70b.ini --ranks 64 --per-node 8")))));
  const std::string shown = run("plan --config input/llama3-8b.ini --ranks 8 --device h100").out;
  const auto between = [](const std::string& text, const std::string& begin, const std::string& end) {
    const auto first = text.find(begin);
    return text.substr(first, text.find(end, first) - first);
  };
  EXPECT_THAT(page, HasSubstr(between(shown, "fits: ", "\n") + "\n\n" +
                              between(shown, "memory per rank", "\n  total")));
  EXPECT_THAT(page, HasSubstr(shown.substr(shown.find("\n  total"))));
  const std::string narrow =
      run("plan --config input/llama3-70b.ini --ranks 64 --per-node 8 --memory 44").err;
  std::string refusal = run("plan --config input/llama3-70b.ini --ranks 8 --device h100").err;
  const auto spaces = [](std::string text) {
    const auto blank = [](char a, char b) { return std::isspace(a) && std::isspace(b); };
    std::replace(text.begin(), text.end(), '\n', ' ');
    text.erase(std::unique(text.begin(), text.end(), blank), text.end());
    return text;
  };
  EXPECT_THAT(spaces(page), AllOf(HasSubstr(spaces(refusal)), HasSubstr(spaces(narrow))));
}

TEST_F(Plan, RefusesAGlobalBatchThatRanksCannotDivideAndNamesTheNearest) {
  expect_refused(
      "--ranks 5",
      "train.global_batch = 24 is not a multiple of 5 ranks x train.micro_batch = 2; use 4 or 6 ranks, "
      "or train.global_batch = 20 or 30");
  expect_refused("--ranks 13",
                 "train.global_batch = 24 is less than 13 ranks x train.micro_batch = 2; use 12 ranks, or "
                 "train.global_batch = 26");
  expect_refused("--ranks 4 --train.micro_batch=100",
                 "train.global_batch = 24 is less than 4 ranks x train.micro_batch = 100; use "
                 "train.micro_batch = 6, or train.global_batch = 400");
  expect_refused(
      "--ranks 5 --train.micro_batch=100",
      "train.global_batch = 24 is less than 5 ranks x train.micro_batch = 100; use 4 or 6 ranks with "
      "train.micro_batch = 1, or train.global_batch = 500");
  expect_refused("--ranks 4 --train.micro_batch=5 --fsdp.sum_order=tree",
                 "train.global_batch = 24 is not a multiple of 4 ranks x train.micro_batch = 5; use "
                 "train.micro_batch = 3, or train.global_batch = 20 or 40");
}

TEST_F(Plan, RefusesAGlobalBatchInTokens) {
  expect_refused(
      "--train.global_batch=524288",
      "a step of 262,144 micro-batches is too long (at most 4,096): train.global_batch = 524288 "
      "counts sequences, not tokens (524,288 tokens fill 32,768 sequences of 16); lower it, or raise "
      "train.micro_batch");
  expect_refused(
      "--data.seq_len=64 --train.micro_batch=auto --train.global_batch=999999937",
      "a step of 999,999,937 micro-batches is too long (at most 4,096): train.global_batch = "
      "999999937 counts sequences, not tokens (999,999,937 tokens fill 15,624,999 sequences of 64); "
      "lower it, or set train.micro_batch");
  EXPECT_EQ(plan("--train.global_batch=524288 --train.micro_batch=65536").status, 0);
}

TEST_F(Plan, TakesAGlobalBatchThatTheRanksDivideWhereNoneIsGiven) {
  const std::string keys = "--model.config=model --data.seq_len=16 --json --ranks ";
  const Ending ending = run("plan --train.micro_batch=2 " + keys + "9");
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(ending.err,
            "train.global_batch is not given: 18 is taken, for 9 ranks x train.micro_batch = 2\n");
  EXPECT_EQ(nlohmann::json::parse(ending.out)["global_batch"], 18);
  EXPECT_EQ(run("plan " + keys + "4").err, "") << "the default, 8, can be divided";
  const std::string tuned = " --tune --machine workstation-2-cores --output tuned.ini";
  EXPECT_EQ(run("plan " + keys + "9" + tuned).status, 0);
  EXPECT_THAT(read_text(folder_.path() / "tuned.ini"), HasSubstr("\nglobal_batch = 9\n"));
}

/// Whether every element ends, and nothing stands outside the root.
bool is_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  std::size_t at = 0;
  bool had_root = false;
  while ((at = xml.find('<', at)) != std::string::npos) {
    const std::size_t end = xml.find('>', at);
    if (end == std::string::npos || (open.empty() && had_root)) return false;
    const std::string tag = xml.substr(at + 1, end - at - 1);
    at = end;
    if (tag.front() == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    had_root = true;
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return false;
  }
  return had_root && open.empty() && xml.find('&') == std::string::npos;
}

TEST_F(Plan, DrawsTheMemoryOfAStep) {
  const auto number = [](const std::string& svg, const std::string& attribute) {
    return std::stoll(svg.substr(svg.find(attribute + "=\"") + attribute.size() + 2));
  };
  int pictures = 0;
  for (const std::string options :
       {"--ranks 2", "--ranks 4 --fsdp.strategy=no_shard --train.micro_batch=1",
        "--ranks 2 --activation.checkpointing=full --fsdp.cpu_offload=optimizer"}) {
    SCOPED_TRACE(options);
    const std::string file = "memory" + std::to_string(++pictures) + ".svg";
    const auto planned = json(options + " --svg " + file);
    const std::string svg = read_text(folder_.path() / file);
    EXPECT_TRUE(is_well_formed(svg));
    EXPECT_THAT(svg, Not(HasSubstr("href"))) << "it needs no other file";
    EXPECT_THAT(svg, HasSubstr("prefers-color-scheme: dark"));
    EXPECT_EQ(number(svg, "data-planned-bytes"), planned["arenas"]["device"]["step_bytes"]);
    EXPECT_LE(number(svg, "data-peak-bytes"), planned["arenas"]["device"]["step_bytes"]);
    if (planned["arenas"]["host"]["step_bytes"] == 0) {
      EXPECT_EQ(number(svg, "data-peak-bytes"),
                planned["arenas"]["device"]["kept_bytes"].get<std::int64_t>() +
                    planned["busiest"]["transient_bytes"].get<std::int64_t>());
    }
  }
  expect_refused("--svg run.ini", "run.ini already exists and is not replaced by --svg: name another file");
  expect_refused("--svg x.svg --tune --machine workstation-2-cores",
                 "--svg is not possible with --tune; write the configuration with --output, then plan it");
}

TEST_F(Plan, PutsRanksOnUnevenNodes) {
  const auto uneven = json("--per-node 3,2,1");
  EXPECT_EQ(uneven["ranks"], 6);
  EXPECT_EQ(uneven["nodes"], 3);
  EXPECT_EQ(uneven["ranks_per_node"], 3);
  EXPECT_EQ(uneven["node_ranks"], (std::vector<int>{3, 2, 1}));
  EXPECT_EQ(json("--ranks 6 --per-node 3")["node_ranks"], nullptr);
  EXPECT_THAT(plan("--per-node 3,2,1").out,
              HasSubstr("6 ranks, 3 nodes of 3, 2, 1: the same number on each is faster\n"));
  const auto predicted = [&](const std::string& nodes) {
    return json(nodes + " --tflops 0.001 --in-node-gb-s 1 --network-gb-s 0.1")["predicted"];
  };
  EXPECT_GT(predicted("--per-node 3,2,1")["strategies"][0]["waiting_seconds"],
            predicted("--ranks 6 --per-node 3")["strategies"][0]["waiting_seconds"]);
  // Why a strategy has no row is said.
  EXPECT_EQ(predicted("--per-node 3,2,1")["impossible"][0]["strategy"], "hybrid_shard");
  EXPECT_THAT(
      plan("--ranks 2 --tflops 1 --in-node-gb-s 1").out,
      ContainsRegex("\n  hybrid_shard +not possible: fsdp.shard_group_size = node needs several nodes[^\n]*\n"
                    "  hybrid_shard_zero2 +not possible: for the same reason\n"));
  expect_refused("--ranks 5 --per-node 3,2,1",
                 "--ranks 5 is not the sum of --per-node 3,2,1, which is 6; leave --ranks out");
  expect_refused("--per-node 3,0",
                 "--per-node 3,0 is not known; use a number of ranks, or the ranks of each node as in 8,8,4");
  expect_refused("--per-node 65536,1",
                 "--per-node has 65537 ranks in total; llampi plan takes at most 65536");
  expect_refused("--per-node 2000000000,2000000000 --ranks 5",
                 "--per-node has 4000000000 ranks in total; llampi plan takes at most 65536");
}

TEST_F(Plan, TunesAConfigurationAndWritesANewFile) {
  const std::string options = "--ranks 2 --threads 1 --machine workstation-2-cores --tune ";
  const Ending tuned = plan(options + "--output tuned.ini");
  ASSERT_EQ(tuned.status, 0) << tuned.err;
  EXPECT_THAT(tuned.out, AllOf(ContainsRegex("\n> [a-z_]+.* +[0-9]"), HasSubstr("\n* full_shard "),
                               ContainsRegex("\n[0-9]+ combinations: [0-9]+ predicted, [0-9]+ left out\n"),
                               HasSubstr("\nwrote tuned.ini: the configuration with\n")));
  const auto speed = [&](const std::string& config) {
    const Ending ending =
        run("plan --json --ranks 2 --threads 1 --machine workstation-2-cores --config " + config);
    EXPECT_EQ(ending.status, 0) << ending.err;
    const auto json = nlohmann::json::parse(ending.out);
    EXPECT_EQ(json["global_batch"], 24) << "the curve stays the same";
    return json["step_time"]["tokens_per_second"].get<double>();
  };
  EXPECT_GT(speed("tuned.ini"), speed("run.ini"));
  expect_refused(options + "--output run.ini",
                 "run.ini already exists and is not replaced by --tune: name another file");
  // What is on the command line is kept.
  const Ending kept = plan(options + "--fsdp.strategy=shard_grad_op --train.micro_batch=2");
  EXPECT_THAT(kept.out, AllOf(HasSubstr("\n> shard_grad_op "), Not(HasSubstr("no_shard")),
                              Not(HasSubstr("--train.micro_batch"))));
  // Likewise what is in the environment, which stands above the file that is written.
  const Ending of_environment = run("plan --config run.ini " + options + "--output kept.ini",
                                    "LLAMPI_FSDP_STRATEGY=shard_grad_op LLAMPI_TRAIN_MICRO_BATCH=2");
  EXPECT_THAT(of_environment.out, AllOf(HasSubstr("\n> shard_grad_op "), Not(HasSubstr("no_shard")),
                                        Not(HasSubstr("--train.micro_batch"))));
  // What is `auto` there is decided as if it were not there.
  const std::string automatic =
      "--train.micro_batch=auto --activation.checkpointing=auto --activation.offload=auto";
  folder_.write("automatic.ini",
                "[model]\nconfig = model\n[data]\nseq_len = 16\n[train]\nmicro_batch = auto\n"
                "global_batch = 24\n[activation]\ncheckpointing = auto\noffload = auto\n");
  EXPECT_EQ(plan(options + automatic).out, run("plan --config automatic.ini " + options).out);
  expect_refused("--tune", "--tune needs the speed of the machine; add --machine");
  expect_refused("--output x.ini", "--output needs --tune");
  expect_refused("--tune-precision", "--tune-precision needs --tune");
  expect_refused("--ranks 5 --machine workstation-2-cores --tune",
                 "--tune keeps train.global_batch = 24, which cannot be divided among 5 ranks; use 20 or 25");
  EXPECT_THAT(plan(options + "--memory 0.0626").err,
              HasSubstr("combinations fits: even the smallest needs "));
  const auto object = json("--ranks 2 --threads 1 --machine workstation-2-cores --tune");
  EXPECT_EQ(object["keys"].size(), object["changed"].size());
  EXPECT_GE(object["best"][0]["tokens_per_second"], object["configured"]["tokens_per_second"]);
  std::int64_t outcomes = object["timed"];
  for (const auto& row : object["rejected"]) outcomes += row["count"].get<std::int64_t>();
  EXPECT_EQ(outcomes, object["candidates"]);
}

// The numbers of its text, as they are printed.
TEST_F(Plan, TuningAccountsForEachCombination) {
  const std::string options = "--ranks 2 --threads 1 --machine workstation-2-cores --tune ";
  std::istringstream lines(plan(options + "--memory 0.065").out);
  std::int64_t combinations = 0, predicted = 0, left_out = 0, reasons = 0;
  for (std::string line; std::getline(lines, line);) {
    std::int64_t number = 0;
    if (const auto at = line.find(" combinations: "); at != std::string::npos) {
      combinations = std::stoll(line);
      const auto colon = line.find(": ");
      predicted = std::stoll(line.substr(colon + 2));
      left_out = std::stoll(line.substr(line.find("predicted, ") + 11));
    } else if (combinations > 0 && std::istringstream(line) >> number) {
      reasons += number;
    }
  }
  EXPECT_GT(predicted, 0);
  EXPECT_GT(left_out, 0);
  EXPECT_EQ(predicted + left_out, combinations);
  EXPECT_EQ(reasons, left_out);

  // What was found is the best of the same search, and a run of it is the same.
  ASSERT_EQ(plan(options + "--output best.ini").status, 0);
  const Ending again = run(
      "plan --ranks 2 --threads 1 --machine workstation-2-cores --tune --config best.ini --output copy.ini");
  EXPECT_THAT(again.out, AllOf(HasSubstr("nothing to change\nwrote copy.ini: the same configuration\n"),
                               HasSubstr("A run as configured is the same\n"), Not(HasSubstr("\n* "))));
  // Accumulation makes no difference to one micro-batch.
  const Ending one =
      plan(options + "--train.micro_batch=12 --fsdp.strategy=full_shard --fsdp.accumulate=unsharded");
  EXPECT_THAT(one.out, AllOf(HasSubstr("A run as configured is the same\n"), Not(HasSubstr("accumulated"))));
  EXPECT_THAT(plan(options + "--train.micro_batch=5").err, HasSubstr("none of "));
  // Numbers that the machine has no figures for are left out, and named.
  const Ending precision =
      plan("--ranks 2 --machine h100 --fsdp.strategy=full_shard --tune --tune-precision");
  EXPECT_EQ(precision.status, 0) << precision.err;
  EXPECT_THAT(
      precision.err,
      HasSubstr(
          "fsdp.param_dtype = float32 was not tried: machine h100 has no figure product_tflops_float32\n"));
}

// What feed-forward networks save goes to host memory: because `auto` as configured has chosen so, or the search.
TEST_F(Plan, TuningIsNoSlowerThanAuto) {
  const std::string input = LLAMPI_TEST_DATA "/../input/";
  std::filesystem::create_directory_symlink(input, folder_.path() / "input");
  std::string text = read_text(input + "llama3-8b.ini");
  const std::string given = "\ncheckpointing = selective";
  ASSERT_NE(text.find(given), text.npos);
  std::ofstream(folder_.path() / "auto.ini")
      << text.replace(text.find(given), given.size(), "\ncheckpointing = auto");
  const auto tuned = [&](const std::string& options) {
    const Ending ending = run(
        "plan --ranks 4 --machine h100 --memory 60 --train.global_batch 8 --train.micro_batch 1 --tune --json --config " +
        options);
    EXPECT_EQ(ending.status, 0) << ending.err;
    return nlohmann::json::parse(ending.out);
  };
  const auto automatic = tuned("auto.ini"), searched = tuned("input/llama3-8b.ini --host-memory 500");
  EXPECT_THAT(automatic["configured"]["checkpointing"].get<std::string>(), StartsWith("offload "));
  EXPECT_EQ(automatic["best"][0]["tokens_per_second"], automatic["configured"]["tokens_per_second"]);
  EXPECT_EQ(automatic["changed"].size(), 0U);
  EXPECT_GE(searched["best"][0]["tokens_per_second"], automatic["configured"]["tokens_per_second"]);
  EXPECT_THAT(searched["keys"]["activation.checkpointing"].get<std::string>(), StartsWith("offload "));
}

// Steps of many micro-batches are compiled with few; the inputs of all count from the beginning.
TEST_F(Plan, TuningCountsTheInputsOfEveryMicroBatch) {
  const std::string options =
      "--ranks 2 --threads 1 --machine workstation-2-cores --train.micro_batch=1 --fsdp.strategy=full_shard "
      "--fsdp.accumulate=sharded --train.global_batch=";
  const auto needed = [&](int batch, const std::string& recomputed) {
    return json(fmt::format("{}{} --activation.checkpointing={}", options, batch, recomputed))["needed_bytes"]
        .get<double>();
  };
  const double full = needed(4000, "full"), none = needed(4000, "none");
  ASSERT_GT(full - needed(8, "full"), none - full) << "inputs are more than what recomputation saves";
  const double memory = full + (none - full) / 8;
  const Ending tuned = plan(fmt::format("{}4000 --tune --memory {:.9f}", options, memory / 0x1p30));
  EXPECT_EQ(tuned.status, 0) << tuned.err;
  EXPECT_THAT(tuned.out, ContainsRegex("\n> full_shard +1 .* (full|feed_forward)"));
  EXPECT_THAT(tuned.out, Not(ContainsRegex("\n> [^\n]*does not fit")));
}

// The plan of all micro-batches is the same; only its compute time is not summed from as many numbers.
TEST_F(Plan, TuningContinuesTheTimeOfVeryManyMicroBatches) {
  const std::string options =
      "--ranks 2 --threads 1 --machine workstation-2-cores --train.micro_batch=1 --train.global_batch=1200 "
      "--fsdp.strategy=full_shard --fsdp.accumulate=sharded --activation.checkpointing=none";
  const auto planned = json(options), configured = json(options + " --tune")["configured"];
  EXPECT_NEAR(
      configured["tokens_per_second"].get<double>() / planned["step_time"]["tokens_per_second"].get<double>(),
      1, 1e-6);
  EXPECT_EQ(configured["needed_bytes"], planned["needed_bytes"]);
}

TEST_F(Plan, TuningLeavesOutWhatTheMachineCannotPredict) {
  const std::string h100 = "--ranks 2 --machine h100 --train.global_batch=4 --tune ";
  expect_refused(
      h100 + "--fsdp.strategy=full_shard --fsdp.param_dtype=float32",
      "none of 3 combinations is possible: machine h100 has no figure product_tflops_float32, which this plan needs "
      "(products in float32, large ones); use a machine file that has it");
  std::ofstream(folder_.path() / "run.ini", std::ios::app) << "[fsdp]\nparam_dtype = float32\n";
  const Ending precision = plan(h100 + "--tune-precision");
  EXPECT_EQ(precision.status, 0) << precision.err;
  EXPECT_THAT(precision.out, HasSubstr("--fsdp.param_dtype=bfloat16 "));

  const std::string input = LLAMPI_TEST_DATA "/../input/";
  std::filesystem::create_directory_symlink(input, folder_.path() / "input");
  auto machine = nlohmann::json::parse(read_text(input + "machines/h100.json"));
  machine["figures"].erase("host_memory_gb_s");
  folder_.write("other.json", machine.dump());
  const std::string large =
      "plan --config input/llama3-8b.ini --ranks 8 --train.global_batch=8 --tune --fsdp.strategy=full_shard ";
  // Of those that fit, some are updated on the host.
  const Ending offloaded =
      run(large + "--machine other.json --memory 20 --host-memory 2000 --activation.checkpointing=full");
  EXPECT_EQ(offloaded.status, 0) << offloaded.err;
  EXPECT_THAT(offloaded.out, HasSubstr("has no figure host_memory_gb_s"));
  const Ending small = run(large + "--machine h100 --host-memory 20 --fsdp.cpu_offload=optimizer");
  EXPECT_EQ(small.status, 2);
  EXPECT_THAT(small.err, ContainsRegex("none of [0-9]+ combinations fits: with offloading a node needs "
                                       "[0-9.]+ GiB of host memory at least, but has 20.00 GiB; "));
}

// Strategies that need another value of one are not searched.
TEST_F(Plan, TuningChangesNoKeyThatIsGiven) {
  const std::string options = "--ranks 4 --per-node 2 --machine h100 --host-memory 100 --tune ";
  const auto tuned = [&](const std::string& key) {
    const Ending ending = plan(options + key);
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_THAT(ending.out, Not(HasSubstr(key.substr(0, key.find('='))))) << key;
    return ending.out;
  };
  EXPECT_THAT(tuned("--fsdp.shard_group_size=2"), HasSubstr("\n> hybrid_shard"));
  EXPECT_THAT(tuned("--fsdp.all_reduce_stream=true"), HasSubstr("\n> hybrid_shard"));
  EXPECT_THAT(tuned("--fsdp.shard_optimizer_over_replicas=true"), Not(HasSubstr("\n> full_shard")));
  EXPECT_THAT(tuned("--fsdp.offload_step=host"), HasSubstr("step on the host"));
  // Groups that are no part of a node, in the configuration alone.
  std::ofstream(folder_.path() / "run.ini", std::ios::app)
      << "[fsdp]\nstrategy = hybrid_shard\nshard_group_size = 3\n";
  const Ending threes = plan(
      "--ranks 15 --per-node 8 --machine h100 --train.global_batch=15 --train.micro_batch=1 --fsdp.strategy=hybrid_shard --tune");
  EXPECT_EQ(threes.status, 0) << threes.err;
  EXPECT_THAT(threes.out, HasSubstr("\n> hybrid_shard of 3"));
  expect_refused(options + "--fsdp.shard_group_size=2 --fsdp.strategy=full_shard",
                 "fsdp.shard_group_size = 2 needs a hybrid strategy, not full_shard");
}

TEST_F(Plan, RefusesWhatARunWouldRefuse) {
  expect_refused(
      "--data.seq_len=65",
      "data.seq_len = 65 is larger than max_position_embeddings = 64 of model; give a smaller data.seq_len");
  expect_refused(
      "--ranks 4 --fsdp.strategy=hybrid_shard",
      "fsdp.shard_group_size = node needs several nodes, and all 4 ranks are on one; use fsdp.strategy = "
      "full_shard, or set fsdp.shard_group_size to a number of ranks");
  expect_refused(
      "--ranks 4 --per-node 3 --fsdp.strategy=hybrid_shard",
      "fsdp.shard_group_size = node needs the same number of ranks on every node, but one has 3 and "
      "another 1; start the same number on each, or set fsdp.shard_group_size to a divisor of the 4 ranks (2; such a group "
      "can span nodes), or use fsdp.strategy = full_shard");
  expect_refused(
      "--ranks 4 --fsdp.strategy=hybrid_shard --fsdp.shard_group_size=3",
      "fsdp.shard_group_size = 3 does not divide 4 ranks into several equal groups; use a smaller divisor "
      "of the number of ranks, or fsdp.strategy = full_shard");
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
  expect_refused("--device h1000",
                 "--device h1000 is not known; use auto, cpu, cuda, gb200, b200, gh200, h200-nvl, "
                 "h200, h100-nvl, h100-pcie, h100, a100-40gb, a100, l40s, a6000 or rtx4090");
  expect_refused("--memory=-1", "--memory -1 is out of range; it must be at least 0 and at most 1000000");
  expect_refused(  // in bytes
      "--device h100 --host-memory 2199023255552",
      "--host-memory 2199023255552 is out of range; it must be at least 0 and at most 1000000");
  expect_refused("--ranks 0", "--ranks 0 is out of range; it must be at least 1 and at most 65536");
  expect_refused("--ranks two", "--ranks two is not a whole number");
  expect_refused("--per-node=-1",
                 "--per-node -1 is not known; use a number of ranks, or the ranks of each node as in 8,8,4");
  expect_refused("--threads=-1", "--threads -1 is out of range; it must be at least 0 and at most 4096");
  expect_refused("--rank 2",
                 "unknown option --rank on the command line; did you mean --ranks or --lora.rank?");
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

// Llama-3-8B has 32 blocks with 218'103'808 elements in matrices. Where its base is in bfloat16, 16 GiB are not enough.
TEST_F(Plan, CountsABaseIn8Bits) {
  const auto planned = [&](const std::string& dtype, int memory) {
    const Ending ending =
        run("plan --json --model.config=" LLAMPI_TEST_DATA
            "/../input/llama3-8b --ranks 1 --device cuda --memory " +
            std::to_string(memory) +
            " --lora.rank=16 --lora.targets=proj --data.seq_len=2048 --train.global_batch=16 "
            "--train.micro_batch=1 --activation.checkpointing=full --lora.base_dtype=" +
            dtype);
    return nlohmann::json::parse(ending.out);
  };
  const auto bytes_of = [](const nlohmann::json& plan, const std::string& role) {
    std::int64_t bytes = 0;
    for (const auto& of : plan["roles"]) bytes += of["role"] == role ? of["bytes"].get<std::int64_t>() : 0;
    return bytes;
  };
  constexpr std::int64_t kMatrices = 32 * std::int64_t{218'103'808};
  const auto narrow = planned("int8", 12), wide = planned("bfloat16", 16);
  EXPECT_EQ(bytes_of(narrow, "int8 parameter shard"), kMatrices / 128 * 132);
  EXPECT_EQ(bytes_of(wide, "int8 parameter shard"), 0);
  EXPECT_EQ(bytes_of(wide, "parameter shard") - bytes_of(narrow, "parameter shard"), 2 * kMatrices);
  EXPECT_EQ(narrow["fits"], true);
  EXPECT_EQ(wide["fits"], false);
  EXPECT_EQ(planned("bfloat16", 24)["fits"], true);
  EXPECT_EQ(narrow["frozen_matrix_dtype"], "int8");
  EXPECT_EQ(narrow["frozen_dtype"], "bfloat16");
  EXPECT_EQ(wide["frozen_matrix_dtype"], "bfloat16");
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
