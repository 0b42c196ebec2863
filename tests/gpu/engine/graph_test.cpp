// SPDX-License-Identifier: Apache-2.0
// Steps that are captured and replayed are the steps that are run action by action, bit by bit.
#include <algorithm>
#include <bit>
#include <functional>

#include "gpu/nccl/nccl_fixture.hpp"
#include "llampi/device/host_batch.hpp"
#include "llampi/fsdp/device_mesh.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/fsdp/step_options.hpp"
#include "llampi/fsdp/storage.hpp"
#include "support/expect_trajectory.hpp"

namespace llampi::test {
namespace {

constexpr int kUsualSteps = 4;

/// Divides the sequences of a micro-batch into so many documents, as evenly as can be.
void divide(device::HostBatch& batch, std::int64_t seq_len, std::int64_t all) {
  const std::int64_t sequences = batch.token_count() / seq_len;
  batch.documents = 0;
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int64_t documents = (s + 1) * all / sequences - s * all / sequences;
    for (std::int64_t d = 0; d < documents; ++d) {
      const std::int64_t begin = s * seq_len + d * seq_len / documents;
      const std::int64_t end = s * seq_len + (d + 1) * seq_len / documents;
      for (std::int64_t t = begin; t < end; ++t)
        batch.positions()[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(t - begin);
      batch.cu_seqlens()[static_cast<std::size_t>(++batch.documents)] = static_cast<std::int32_t>(end);
    }
  }
}

class GpuGraph : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    rank_ = make_gpu_rank(test_world(), why);
    if (!rank_.world) GTEST_SKIP() << "no GPU to test: " << why;
    host_ = device::make_cpu_device(1);
    machine_ = std::make_unique<Machine>(Machine{*rank_.device, *host_, *rank_.world});
  }
  void TearDown() override { work_orders().front().set(); }

  using BeforeStep = std::function<void(TrainingRun&, TrainingRun::Inputs&, int)>;

  /// Some steps, each after `before`. @param replays that there must have been of graphs
  Trajectory run(TrajectoryOptions options, std::int64_t replays, const BeforeStep& before, int steps) {
    options.machine = machine_.get();
    TrainingRun run(test_world(), fixture_, options);
    Trajectory trajectory;
    for (int t = 1; t <= steps; ++t) {
      auto inputs = run.inputs(t);
      inputs.step.learning_rate = 1e-3 * t;
      if (before) before(run, inputs, t);
      const auto result = run.step(inputs);
      trajectory.losses.push_back(result.loss);
      trajectory.grad_norms.push_back(result.grad_norm);
    }
    EXPECT_EQ(run.engine().graph_counts().replays, options.graph ? replays : 0);
    EXPECT_LE(run.engine().graph_counts().nodes, options.graph_nodes);
    nodes_ = run.engine().graph_counts().nodes;
    without_room_ = run.engine().graph_counts().without_room;
    EXPECT_EQ(run.engine().memory().used(), run.engine().compiled().arena_bytes) << "the plan is exact";
    trajectory.final_parameters = whole_parameters(test_world(), run.device(), run.engine());
    return trajectory;
  }
  /// With graphs and without, in every order of work.
  void expect_same(TrajectoryOptions options, std::int64_t replays, const BeforeStep& before = {},
                   int steps = kUsualSteps) {
    options.poison = true;
    const Trajectory eager = run(options, replays, before, steps);
    options.graph = true;
    for (const auto& order : compared_orders()) {
      SCOPED_TRACE(order.name);
      order.set();
      expect_same_bits(eager, run(options, replays, before, steps), "with graphs");
    }
    work_orders().front().set();
  }

  /// A small batch, because the emulated GPU is slow.
  static oracle::Fixture fixture(std::int64_t seq_len, std::int64_t global_batch,
                                 const char* name = "one_layer_one_head") {
    oracle::Fixture fixture = oracle::load(name);
    fixture.seq_len = seq_len;
    fixture.global_batch = global_batch;
    return fixture;
  }

  oracle::Fixture fixture_ = fixture(7, 4);
  GpuRank rank_;
  std::unique_ptr<device::Device> host_;
  std::unique_ptr<Machine> machine_;
  std::int64_t nodes_ = 0, without_room_ = 0;  ///< of the last run's graphs
};

TEST_F(GpuGraph, ReplaysEveryStepButTheFirst) {
  expect_same({}, kUsualSteps - 1);
  expect_same({.accumulation = 2, .checkpointing = fsdp::Checkpointing::full}, kUsualSteps - 1);
}

TEST_F(GpuGraph, ReplaysWhateverIsInTheList) {
  const fsdp::Precision brain = {.param = DType::bfloat16,
                                 .compute = DType::bfloat16,
                                 .reduce = DType::bfloat16,
                                 .gradient_shard = DType::bfloat16};
  const std::vector<TrajectoryOptions> all = {
      {.strategy = fsdp::Strategy::no_shard, .precision = brain},
      {.strategy = fsdp::Strategy::shard_grad_op, .accumulation = 2, .unsharded = true},
      {.accumulation = 2, .offload = {.optimizer = true, .params = true}}};
  for (const auto& options : all) expect_same(options, kUsualSteps - 1);
  fixture_ = fixture(7, 4, "bf16_params");  // two blocks: the residuals of the last one stay
  const auto same_number_of_labels = [](TrainingRun&, TrainingRun::Inputs& inputs, int) {
    for (auto& batch : inputs.micro_batches) batch.valid_labels = batch.token_count();  // at most
  };
  for (const TrajectoryOptions& options :
       {TrajectoryOptions{.accumulation = 2, .offload = {.residuals = true}},
        TrajectoryOptions{.accumulation = 2, .checkpointing = fsdp::Checkpointing::offload}})
    expect_same(options, kUsualSteps - 1, same_number_of_labels);
}

TEST_F(GpuGraph, TheHostsUpdateNeedsNone) {
  expect_same({.offload = {.optimizer = true, .host_step = true}}, 0);
}

// Numbers of documents that come in turns, and on one rank only: the ranks must agree, or collectives would be
// replayed on some and issued on others.
TEST_F(GpuGraph, ThereIsOneForEachNumberOfDocuments) {
  const auto some_documents = [&](TrainingRun&, TrainingRun::Inputs& inputs, int t) {
    auto& batch = inputs.micro_batches.front();
    if (test_world().rank() == 0 && t % 2 == 0) divide(batch, fixture_.seq_len, 2 * batch.documents);
  };
  expect_same({.accumulation = 2}, kUsualSteps - 2, some_documents);
}

// The head leaves out rows without a label: of all micro-batches of all ranks the same number.
TEST_F(GpuGraph, ThereIsOneForEachNumberOfLabels) {
  const auto few_labels = [&](TrainingRun&, TrainingRun::Inputs& inputs, int t) {
    if (t % 2 != 0) return;
    for (auto& batch : inputs.micro_batches) {
      std::ranges::fill(batch.labels().subspan(1), -1);
      batch.valid_labels = std::min<std::int64_t>(batch.valid_labels, 1);
    }
  };
  expect_same({.accumulation = 2}, kUsualSteps - 2, few_labels);
}

// Operations are issued for the most documents so far, so the second time numbers come in turns there are two graphs.
TEST_F(GpuGraph, NumbersOfDocumentsNeverFall) {
  fixture_ = fixture(16, 2);
  const auto more_and_more = [&](TrainingRun&, TrainingRun::Inputs& inputs, int t) {
    auto& batch = inputs.micro_batches.front();
    const auto more =
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(batch.documents + 1)));
    const int turn = (t - 1) % 5;
    if (turn > 0) divide(batch, fixture_.seq_len, std::min(batch.token_count(), more << (turn - 1)));
  };
  expect_same({}, 7, more_and_more, 12);
}

/// So many quarters of the tokens have labels.
void keep_labels(TrainingRun::Inputs& inputs, int quarters) {
  for (auto& batch : inputs.micro_batches) {
    batch.valid_labels = batch.token_count() * quarters / 4;
    std::ranges::fill(batch.labels().subspan(static_cast<std::size_t>(batch.valid_labels)), -1);
  }
}

// Four numbers in turns, and room for three graphs: all three are in use.
TEST_F(GpuGraph, AFourthIsIssuedWhereThreeTakeTheRoom) {
  fixture_ = fixture(16, 2);
  run({.graph = true}, 1, {}, 2);
  const std::int64_t nodes_of_one = nodes_;
  const auto quarters = [](TrainingRun&, TrainingRun::Inputs& inputs, int t) {
    keep_labels(inputs, 4 - (t - 1) % 4);
  };
  expect_same({.graph_nodes = nodes_of_one * 7 / 2}, 6, quarters, 12);
  EXPECT_GT(nodes_, 2 * nodes_of_one);
  EXPECT_EQ(without_room_, 1);
}

// There is room for one graph: that of the smaller number goes when the number grows, since no step is like it again.
TEST_F(GpuGraph, OutgrownOnesGoAtOnce) {
  fixture_ = fixture(16, 2);
  const auto documents = [&](TrainingRun&, TrainingRun::Inputs& inputs, int t) {
    for (auto& batch : inputs.micro_batches)
      divide(batch, fixture_.seq_len, std::min(batch.token_count(), (t <= 2 ? 2 : 4) * batch.documents));
  };
  run({.graph = true}, 1, documents, 2);
  expect_same({.graph_nodes = nodes_ * 3 / 2}, 1 + 2, documents, 2 + 3);
  EXPECT_EQ(without_room_, 0);
}

// A number that comes no more gives way after a hundred steps with others. When it comes again, the others are in use.
TEST_F(GpuGraph, OldOnesGiveWay) {
  run({.graph = true}, 1, {}, 2);
  constexpr int kOthers = 104;
  const auto change = [](TrainingRun&, TrainingRun::Inputs& inputs, int t) {
    keep_labels(inputs, t <= 2 ? 4 : t <= kOthers ? 2 : t <= kOthers + 2 ? 1 : 4);
  };
  // Two graphs have room. The second step of each number is captured; the third finds the first unused.
  run({.graph = true, .graph_nodes = nodes_ * 5 / 2}, kOthers + 2 - 3, change, kOthers + 4);
  EXPECT_EQ(without_room_, 1);
}

// So does one after which only steps without room come.
TEST_F(GpuGraph, WhatHadNoRoomGetsItLater) {
  fixture_ = fixture(16, 2);
  run({.graph = true}, 1, {}, 2);
  constexpr int kOthers = 102;
  const auto change = [](TrainingRun&, TrainingRun::Inputs& inputs, int t) {
    keep_labels(inputs, t <= 2 ? 4 : 2);
  };
  run({.graph = true, .graph_nodes = nodes_ * 3 / 2}, 1 + 2, change, kOthers + 1);
  EXPECT_EQ(without_room_, 0);
}

TEST_F(GpuGraph, AStepOfMoreNodesThanThereIsRoomForIsIssued) {
  expect_same({.graph_nodes = 20}, 0);
  EXPECT_EQ(without_room_, 1);
}

TEST_F(GpuGraph, EvaluationsAndLoadsComeBetween) {
  std::vector<double> losses;
  const auto evaluate_and_load = [&](TrainingRun& run, TrainingRun::Inputs& inputs, int t) {
    if (t % 2 == 0) losses.push_back(run.engine().evaluate(inputs.micro_batches.front()));
    if (t == 3) run.engine().initialise(7);  // as a checkpoint is loaded: other parameters in the same place
  };
  expect_same({.precision = {.param = DType::bfloat16}}, kUsualSteps - 1, evaluate_and_load);
  ASSERT_GE(losses.size(), 4U);  // two of each run
  for (std::size_t i = 2; i < losses.size(); ++i) EXPECT_EQ(losses[i], losses[i - 2]);
}

TEST_F(GpuGraph, AStepThatIsObservedIsRun) {
  const auto observe_one = [](TrainingRun& run, TrainingRun::Inputs&, int t) {
    run.engine().observe(t == 3 ? [](const fsdp::Action&, int, fsdp::Moment, double) {} : fsdp::Observer());
  };
  expect_same({}, kUsualSteps - 2, observe_one);
}

}  // namespace
}  // namespace llampi::test
