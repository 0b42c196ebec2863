// SPDX-License-Identifier: Apache-2.0
// Whole runs in a temporary folder: what they write, evaluate and refuse.
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "llampi/checkpoint/engine_weights.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"
#include "llampi/comm/threads.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/train/evaluate.hpp"
#include "ranks/train/run_fixture.hpp"
#include "support/simulated_nodes.hpp"

namespace llampi::test {
namespace {

using namespace train;

using ::testing::HasSubstr;

TEST_F(Train, WritesOneLinePerStepAndTheCheckpointsAskedFor) {
  EXPECT_EQ(run(config("a")), Outcome::done);
  const auto lines = metrics("a");
  ASSERT_EQ(lines.size(), 12U);
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i]["step"], i + 1);
  EXPECT_LT(lines.back()["loss"].get<double>(), lines.front()["loss"].get<double>());
  std::vector<std::string> names;
  for (const auto& file : checkpoint::list_checkpoints(folder_ / "a")) names.push_back(file.filename());
  EXPECT_EQ(names, (std::vector<std::string>{"step-00000004.h5", "step-00000008.h5", "step-00000012.h5"}));
  EXPECT_TRUE(fs::exists(folder_ / "a" / "config.ini"));
}

// The fifth step is reported while the sixth runs.
TEST_F(Train, SaysWhichRankIsTheSlowestInAStep) {
  const int slow = world().size() - 1;
  run(config("a"), at_step(5, slow, [] { std::this_thread::sleep_for(std::chrono::seconds(1)); }));
  const auto lines = metrics("a");
  if (world().size() == 1) {
    EXPECT_FALSE(lines[5].contains("slowest_rank"));
    return;
  }
  EXPECT_EQ(lines[5]["slowest_rank"], slow);
  EXPECT_GE(lines[5]["slowest_rank_seconds"].get<double>(), 1);
  for (const auto& line : lines) EXPECT_LE(line["mean_rank_seconds"], line["slowest_rank_seconds"]);
}

TEST_F(Train, WarnsOfCheckpointsThatOtherOptionsKept) {
  auto c = config("a");
  c.checkpoint.every = 2;
  c.checkpoint.keep = 1;
  c.checkpoint.keep_every = 4;
  run(c, keeping_log());
  EXPECT_FALSE(world().rank() == 0 && logged("the next save deletes"));
  c.train.steps = 14;
  c.checkpoint.keep_every = 0;
  run(c, keeping_log());
  EXPECT_TRUE(logged("keep_every = 0 the next save deletes 2 older checkpoints or more, from "));
  EXPECT_EQ(checkpoint::list_checkpoints(c.run.dir), std::vector{checkpoint::checkpoint_path(c.run.dir, 14)});
}

// fsdp.sync_init = broadcast: the other ranks are given a file with other weights, which they do not read.
TEST_F(Train, RankZeroAloneReadsACheckpointThatIsBroadcast) {
  auto c = config("a");
  c.train.steps = 1;
  run(c);
  c.run.dir = (folder_ / "b").string();
  c.run.seed = 7;
  run(c);
  const auto llama = model::LlamaConfig::read(c.model.config);
  const auto model = model::make_llama(llama);
  const auto device = device::make_cpu_device(1);
  fsdp::EngineOptions options;
  options.batch = {1, 16};
  options.training = false;
  const auto weights_of = [&](const std::string& on_rank_0, const std::string& elsewhere,
                              checkpoint::WeightsReading reading) {
    fsdp::Engine engine(*model, *device, world(), options);
    const auto name = world().rank() == 0 ? on_rank_0 : elsewhere;
    checkpoint::load_weights(world(), *device, checkpoint::checkpoint_path(folder_ / name, 1), llama, engine,
                             reading);
    std::vector<float> values;
    for (const auto& piece : engine.pieces_to_load()) {
      const auto* first = piece.master.as<float>();
      values.insert(values.end(), first, first + piece.master.elements());
    }
    return values;
  };
  const auto expected = weights_of("a", "a", checkpoint::WeightsReading::each);
  EXPECT_FALSE(expected.empty());
  EXPECT_EQ(weights_of("a", "b", checkpoint::WeightsReading::broadcast), expected);
}

TEST_F(Train, EpochsCountWholeBatches) {
  auto c = config("a");
  c.train.steps = 0;
  c.train.epochs = 2;
  run(c);
  // floor(2999 / 16) = 187 samples, 15 steps of 12 per epoch.
  EXPECT_EQ(metrics("a").size(), 30U);
}

TEST_F(Train, EvaluatesHeldOutDataAndLeavesTheCurveAlone) {
  run(config("a"));
  auto c = config("b");
  c.data.eval = (folder_ / "eval.h5").string();
  c.train.eval_every = 5;
  run(c);
  std::vector<nlohmann::json> evaluations;
  std::vector<std::string> steps;
  for (const auto& line : metrics("b")) {
    if (line.contains("eval_loss")) evaluations.push_back(line);
  }
  ASSERT_EQ(evaluations.size(), 3U) << "steps 5, 10 and the last";
  EXPECT_EQ(evaluations[0]["step"], 5);
  EXPECT_LT(evaluations[2]["eval_loss"].get<double>(), evaluations[0]["eval_loss"].get<double>());
  EXPECT_EQ(tensors("a", 12), tensors("b", 12));

  // The same loss from the checkpoint, with another micro-batch.
  const auto result = evaluate(world(), checkpoint::checkpoint_path(folder_ / "b", 12), folder_ / "eval.h5",
                               {16, 3, kOnCpu}, Log());
  // Sums of about 500 float32 token losses of about 4 in another grouping.
  EXPECT_NEAR(result.loss, evaluations[2]["eval_loss"].get<double>(), 1e-6 * result.loss);

  // A micro-batch has no more rows than there are samples.
  const auto large = evaluate(world(), checkpoint::checkpoint_path(folder_ / "b", 12), folder_ / "eval.h5",
                              {16, 1'000'000'000, kOnCpu}, Log());
  EXPECT_EQ(large.tokens, result.tokens);
  EXPECT_NEAR(large.loss, result.loss, 1e-6 * result.loss);
}

// Also with what the run's attention sees of other documents.
TEST_F(Train, EvaluatesACheckpointAsItsRunDid) {
  std::vector<double> losses;
  for (const bool mask : {true, false}) {
    auto c = config(mask ? "masked" : "whole");
    c.data.document_mask = mask;
    c.data.eval = (folder_ / "eval.h5").string();
    c.train.steps = 2;
    c.train.eval_every = 2;
    train::train(world(), c, {fmt::format("[data]\ndocument_mask = {}\n", mask)}, Log());
    const auto result =
        evaluate(world(), checkpoint::checkpoint_path(c.run.dir, 2), c.data.eval, {0, 1, kOnCpu}, Log());
    EXPECT_NEAR(result.loss, metrics(mask ? "masked" : "whole").back()["eval_loss"].get<double>(),
                1e-6 * result.loss);
    losses.push_back(result.loss);
  }
  EXPECT_GT(std::abs(losses[0] - losses[1]), 1e-4);
}

TEST_F(Train, AStepWithoutValidLabelsHasLossZeroAndNoUpdate) {
  write_singles();
  auto c = config("a");
  c.data.train = (folder_ / "singles.h5").string();
  c.train.steps = 2;
  c.checkpoint.every = 1;
  EXPECT_EQ(run(c), Outcome::done);
  for (const auto& line : metrics("a")) {
    EXPECT_EQ(line["loss"], 0);
    EXPECT_EQ(line["tokens"], 0);
  }
  EXPECT_EQ(tensors("a", 1), tensors("a", 2));
}

TEST_F(Train, BadInputIsTheUsersMistakeOnEveryRank) {
  auto c = config("a");
  c.train.global_batch = 12 * world().size() + 1;
  if (world().size() > 1) {
    EXPECT_THROW(run(c), UserError);
  }
  c = config("a");
  c.train.global_batch = 1200;
  EXPECT_THROW(run(c), UserError) << "more samples than the file has";
  c = config("a");
  c.data.train = (folder_ / "config.json").string();
  EXPECT_THROW(run(c), UserError) << "no token file";
  c = config("a");
  c.data.seq_len = 128;
  EXPECT_THROW(run(c), UserError) << "longer than the model's positions";
  EXPECT_FALSE(fs::exists(folder_ / "a")) << "nothing is written before the input is known to be right";
}

TEST_F(Train, SizesTooLargeForTheirProductAreTheUsersMistake) {
  auto c = config("a");
  c.train.micro_batch = c.train.global_batch = std::int64_t{1} << 62;  // times 2 or 4 ranks: 2^63 and 0
  EXPECT_THAT(refusal(c), HasSubstr("train.global_batch = 4611686018427387904"));
}

TEST_F(Train, AFolderThatTakesNoCheckpointsIsFoundBeforeTheFirstStep) {
  if (world().rank() == 0) {
    fs::create_directory(folder_ / "a");
    fs::create_directory_symlink("/proc", folder_ / "a" / "checkpoints");  // not even for root
  }
  world().barrier();
  EXPECT_THAT(refusal(config("a")), HasSubstr("checkpoints"));
  EXPECT_TRUE(metrics("a").empty());
}

TEST_F(Train, ALossThatIsNotFiniteEndsTheRunOnAllRanksAlike) {
  for (const std::int64_t every : {0, 1}) {
    auto c = config(fmt::format("every-{}", every));
    c.optimizer.lr = 1e30;
    c.optimizer.warmup_steps = 0;
    c.checkpoint.every = every;
    try {
      run(c);
      ADD_FAILURE() << "the loss stays finite";
    } catch (const comm::CommonError& error) {
      EXPECT_THAT(error.what(), HasSubstr("not finite at step 2"));
      EXPECT_THAT(error.what(), HasSubstr(every == 0 ? "there is no checkpoint yet"
                                                     : "the newest checkpoint is of step 1"));
    }
  }
}

TEST_F(Train, AnEvaluationWithoutValidLabelsHasNoLoss) {
  write_singles();
  auto c = config("a");
  c.data.eval = (folder_ / "singles.h5").string();
  c.train.eval_every = 12;
  run(c, keeping_log());
  EXPECT_TRUE(logged("singles.h5 has no valid labels"));
  EXPECT_TRUE(metrics("a").back()["eval_loss"].is_null());
  const auto result = evaluate(world(), checkpoint::checkpoint_path(c.run.dir, 12), c.data.eval,
                               {16, 1, kOnCpu}, keeping_log());
  EXPECT_TRUE(logged("singles.h5 has no valid labels"));
  EXPECT_TRUE(std::isnan(result.loss) && std::isnan(result.perplexity));
}

TEST_F(Train, EvaluatesNoLongerSequencesThanTheModelHasPositions) {
  run(config("a"));
  const auto file = checkpoint::checkpoint_path(folder_ / "a", 12);
  EXPECT_NO_THROW(evaluate(world(), file, folder_ / "eval.h5", {64, 1, kOnCpu}, Log()));
  EXPECT_THROW(evaluate(world(), file, folder_ / "eval.h5", {65, 1, kOnCpu}, Log()), UserError);
}

TEST_F(Train, BindingRanksToCoresChangesNoBitAndNoNumberOfThreads) {
  const int threads = comm::threads_per_rank(world(), 0);
  auto c = config("bound");
  c.train.steps = 4;
  c.run.bind = comm::Bind::automatic;
  run(c, keeping_log());
  EXPECT_TRUE(logged("cores: "));
  c.run.dir = (folder_ / "free").string();
  c.run.bind = comm::Bind::none;
  run(c, keeping_log());
  EXPECT_TRUE(logged("not bound (run.bind = none)"));
  EXPECT_EQ(curve("bound"), curve("free"));
  EXPECT_EQ(tensors("bound", 4), tensors("free", 4));
  EXPECT_EQ(comm::threads_per_rank(world(), 0), threads);
}

TEST_F(Train, ThreadsAreThoseAskedForElseOfOpenMPElseTheCores) {
  const char* before = std::getenv("OMP_NUM_THREADS");
  const std::string kept = before == nullptr ? "" : before;
  setenv("OMP_NUM_THREADS", "7,2", 1);
  EXPECT_EQ(comm::threads_per_rank(world(), 3), 3);
  EXPECT_EQ(comm::threads_per_rank(world(), 0), 7);
  unsetenv("OMP_NUM_THREADS");
  const int cores = comm::threads_per_rank(world(), 0);
  EXPECT_GE(cores, 1);
  setenv("OMP_NUM_THREADS", "many", 1);
  EXPECT_EQ(comm::threads_per_rank(world(), 0), cores);
  if (world().rank() == world().size() - 1) setenv("OMP_NUM_THREADS", "5000", 1);
  EXPECT_THROW(comm::threads_per_rank(world(), 0), UserError) << "of one rank, on all";
  if (before == nullptr) {
    unsetenv("OMP_NUM_THREADS");
  } else {
    setenv("OMP_NUM_THREADS", kept.c_str(), 1);
  }
}

// Where the last bits depend on it, who shared a node is in the checkpoint.
TEST_F(Train, ThePlacementThatSumsFollowIsRecorded) {
  if (world().size() != 4) GTEST_SKIP() << "needs two nodes of several ranks";
  SimulatedNodes in_turns(world(), {0, 1, 0, 1});
  auto c = config("a");
  c.train.steps = 1;
  EXPECT_EQ(train::train(in_turns, c, {"resolved\n"}, keeping_log()), Outcome::done);
  EXPECT_TRUE(logged("share a node (ranks 0, 2; ranks 1, 3)"));
  world().barrier();
  const auto texts = checkpoint::read_checkpoint_summary(checkpoint::checkpoint_path(folder_ / "a", 1)).texts;
  EXPECT_THAT(texts.run_config, ::testing::HasSubstr("# run.placement: ranks 0, 2; ranks 1, 3\n"));
  c.train.steps = 2;
  EXPECT_EQ(train::train(in_turns, c, {"resolved\n"}, keeping_log()), Outcome::done);
  EXPECT_FALSE(world().rank() == 0 && logged("changed since step 1: placement")) << "it is the same";
  SimulatedNodes uneven(world(), {0, 0, 0, 1});
  c.train.steps = 3;
  EXPECT_EQ(train::train(uneven, c, {"resolved\n"}, keeping_log()), Outcome::done);
  EXPECT_TRUE(logged(
      "changed since step 2: placement of ranks on nodes = ranks 0-2; rank 3, was ranks 0, 2; ranks 1, 3: sums "
      "over ranks are formed in another order, so the last bits differ"));
  c.train.steps = 4;
  c.fsdp.reduce_dtype = DType::bfloat16;
  c.run.resume_with_changes = true;
  SimulatedNodes even(world(), {0, 0, 1, 1});
  EXPECT_EQ(train::train(even, c, {"resolved\n"}, keeping_log()), Outcome::done);
  EXPECT_TRUE(logged(
      "sums: within each node first, and the sum of a node is rounded to bfloat16 before nodes are added"));
}

}  // namespace
}  // namespace llampi::test
