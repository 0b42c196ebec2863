// SPDX-License-Identifier: Apache-2.0
// How often the host waits for the GPU in a step: what waits twice leaves the GPU idle in between.
#include "emulator/control.hpp"
#include "gpu/nccl/nccl_fixture.hpp"
#include "support/trajectory.hpp"

namespace llampi::test {
namespace {

class HostWaits : public ::testing::Test {
 protected:
  void TearDown() override { work_orders().front().set(); }

  /// In each step. Nothing is done before it is waited for, so no wait finds its work done by chance.
  std::vector<int> waits(TrajectoryOptions options, int steps) {
    std::string why;
    GpuRank rank = make_gpu_rank(test_world(), why);
    const auto host = device::make_cpu_device(1);
    Machine machine{*rank.device, *host, *rank.world};
    options.machine = &machine;
    options.graph = true;
    oracle::Fixture fixture = oracle::load("one_layer_one_head");
    fixture.seq_len = 7;
    fixture.global_batch = 4;
    TrainingRun run(test_world(), fixture, options);
    emulator::set_stream_order(emulator::StreamOrder::lazy);
    std::vector<int> result;
    for (int t = 1; t <= steps; ++t) {
      const auto inputs = run.inputs(t);
      emulator::take_host_waits();
      run.step(inputs);
      result.push_back(emulator::take_host_waits());
    }
    EXPECT_EQ(run.engine().graph_counts().replays, steps - 1);
    return result;
  }
};

// At its end, for what it tells. The second step captures, and replays as those after it.
TEST_F(HostWaits, AreOneInAReplayedStep) {
  const std::vector<TrajectoryOptions> all = {
      {}, {.accumulation = 2}, {.offload = {.optimizer = true, .params = true}}};
  for (const auto& options : all) {
    const std::vector<int> of_step = waits(options, 4);
    for (std::size_t t = 1; t < of_step.size(); ++t) EXPECT_EQ(of_step[t], 1) << "in step " << t + 1;
  }
}

}  // namespace
}  // namespace llampi::test
