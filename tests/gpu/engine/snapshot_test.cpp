// SPDX-License-Identifier: Apache-2.0
// Snapshots have the state of their moment, though training goes on before the copies are made.
#include <cstring>
#include <thread>

#include "gpu/nccl/nccl_fixture.hpp"
#include "llampi/fsdp/device_mesh.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/fsdp/step_options.hpp"
#include "llampi/fsdp/storage.hpp"
#include "support/expect_trajectory.hpp"

namespace llampi::test {
namespace {

using State = std::vector<std::vector<std::byte>>;

constexpr int kRounds = 2;
constexpr fsdp::Precision kBrain = {.param = DType::bfloat16, .compute = DType::bfloat16};

std::vector<Tensor> tensors_of(const std::vector<fsdp::StatePiece>& pieces) {
  std::vector<Tensor> tensors;
  for (const auto& piece : pieces) {
    for (const Tensor& tensor : {piece.master, piece.exp_avg, piece.exp_avg_sq}) tensors.push_back(tensor);
  }
  return tensors;
}

class GpuSnapshot : public ::testing::Test {
 protected:
  void SetUp() override {
    fixture_.seq_len = 7;  // little, because the emulated GPU is slow
    fixture_.global_batch = 4;
    std::string why;
    rank_ = make_gpu_rank(test_world(), why);
    if (!rank_.world) GTEST_SKIP() << "no GPU to test: " << why;
    host_ = device::make_cpu_device(1);
    machine_ = std::make_unique<Machine>(Machine{*rank_.device, *host_, *rank_.world});
  }
  void TearDown() override { work_orders().front().set(); }

  std::unique_ptr<TrainingRun> start(TrajectoryOptions options) {
    options.machine = machine_.get();
    options.snapshot = true;
    return std::make_unique<TrainingRun>(test_world(), fixture_, options);
  }
  /// What the engine would save now. Nothing waits for copies of a snapshot.
  State state_of(const fsdp::Engine& engine) {
    State state;
    for (const Tensor& tensor : tensors_of(engine.pieces_to_save())) {
      auto& bytes = state.emplace_back(static_cast<std::size_t>(tensor.bytes()));
      rank_.device->download(bytes.data(), tensor, device::Stream::compute);
      rank_.device->synchronize(device::Stream::compute);
    }
    return state;
  }
  /// What is in the host's memory now.
  static State contents_of(const std::vector<fsdp::StatePiece>& snapshot) {
    State state;
    for (const Tensor& tensor : tensors_of(snapshot)) {
      auto& bytes = state.emplace_back(static_cast<std::size_t>(tensor.bytes()));
      if (!bytes.empty()) std::memcpy(bytes.data(), tensor.data, bytes.size());
    }
    return state;
  }

  /// Two steps for each snapshot: one before and one behind it.
  void expect_state_of_its_moment(const TrajectoryOptions& options, std::int64_t replays) {
    const auto run = start(options);
    fsdp::Engine& engine = run->engine();
    // The earliest update that there can be, where streams are lazy: only what it waits for comes before.
    const fsdp::Observer update_at_once = [&](const fsdp::Action& action, int, fsdp::Moment moment, double) {
      if (action.op == fsdp::Op::update && moment == fsdp::Moment::end)
        rank_.device->synchronize(action.stream);
    };
    for (int round = 0; round < kRounds; ++round) {
      run->step(2 * round + 1);
      const State expected = state_of(engine);
      const auto snapshot = engine.snapshot();
      if (!options.graph) engine.observe(update_at_once);  // a step that is observed is never replayed
      run->step(2 * round + 2);
      engine.observe({});
      engine.wait_for_snapshot();
      EXPECT_TRUE(contents_of(snapshot) == expected) << "round " << round;
      EXPECT_FALSE(state_of(engine) == expected) << "the step has changed it since";
    }
    EXPECT_EQ(engine.graph_counts().replays, replays);
    EXPECT_EQ(engine.memory().used(), engine.compiled().arena_bytes) << "the plan is exact";
  }

  oracle::Fixture fixture_ = oracle::load("one_layer_one_head");
  GpuRank rank_;
  std::unique_ptr<device::Device> host_;
  std::unique_ptr<Machine> machine_;
};

TEST_F(GpuSnapshot, TheNextUpdateComesAfterTheCopies) {
  const std::vector<TrajectoryOptions> all = {
      {},
      {.strategy = fsdp::Strategy::no_shard, .precision = kBrain},
      {.offload = {.optimizer = true}},
      {.precision = kBrain, .offload = {.optimizer = true}},
      {.offload = {.optimizer = true, .params = true}},
      {.offload = {.optimizer = true, .host_step = true}},
      {.offload = {.optimizer = true, .params = true, .host_step = true}}};
  for (const auto& options : all) {
    SCOPED_TRACE(::testing::Message() << "configuration " << &options - all.data());
    for (const auto& order : compared_orders()) {
      SCOPED_TRACE(order.name);
      order.set();
      expect_state_of_its_moment(options, 0);
    }
  }
}

// Of two steps the second is behind a snapshot, and issued; the very first is so in any case.
TEST_F(GpuSnapshot, AGraphIsNotReplayedBesideTheCopies) {
  for (const auto& order : compared_orders()) {
    SCOPED_TRACE(order.name);
    order.set();
    expect_state_of_its_moment({.graph = true}, kRounds - 1);
    expect_state_of_its_moment({.offload = {.optimizer = true}, .graph = true}, kRounds - 1);
  }
}

TEST_F(GpuSnapshot, IsCompleteForWhoeverWaits) {
  for (const auto& order : compared_orders()) {
    SCOPED_TRACE(order.name);
    order.set();
    const auto run = start({});
    fsdp::Engine& engine = run->engine();
    run->step(1);
    const State first = state_of(engine);
    auto snapshot = engine.snapshot();
    if (order.name.starts_with("lazy")) {
      EXPECT_FALSE(contents_of(snapshot) == first) << "nothing is copied yet";
    }
    engine.wait_for_snapshot();
    EXPECT_TRUE(contents_of(snapshot) == first);

    run->step(2);
    const State second = state_of(engine);
    snapshot = engine.snapshot();
    engine.initialise(7);  // as a checkpoint is loaded
    EXPECT_TRUE(contents_of(snapshot) == second);
  }
}

// As a save in the background does.
TEST_F(GpuSnapshot, IsCompleteForAThreadThatWaits) {
  for (const auto& order : compared_orders()) {
    SCOPED_TRACE(order.name);
    order.set();
    const auto run = start({});
    fsdp::Engine& engine = run->engine();
    for (int t = 1; t <= kRounds; ++t) {
      run->step(t);
      const State expected = state_of(engine);
      State read;
      std::jthread reader([&, snapshot = engine.snapshot()] {
        engine.wait_for_snapshot();
        read = contents_of(snapshot);
      });
      run->step(t);
      reader.join();
      EXPECT_TRUE(read == expected) << "step " << t;
    }
  }
}

}  // namespace
}  // namespace llampi::test
