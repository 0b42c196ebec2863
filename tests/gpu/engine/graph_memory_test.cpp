// SPDX-License-Identifier: Apache-2.0
// A GPU that has no memory left for the graph of a step.
#include <limits>

#include "emulator/control.hpp"
#include "gpu/nccl/nccl_fixture.hpp"
#include "support/trajectory.hpp"

namespace llampi::test {
namespace {

class GraphMemory : public ::testing::TestWithParam<emulator::GraphCall> {
 protected:
  void TearDown() override { emulator::limit_graphs(std::numeric_limits<std::size_t>::max()); }
};

// Collectives are replayed by all ranks or by none.
TEST_P(GraphMemory, ThatOneRankLacksLetsAllIssueTheirSteps) {
  std::string why;
  GpuRank rank = make_gpu_rank(test_world(), why);
  const auto host = device::make_cpu_device(1);
  Machine machine{*rank.device, *host, *rank.world};
  oracle::Fixture fixture = oracle::load("one_layer_one_head");
  fixture.seq_len = 7;
  fixture.global_batch = 4;
  TrainingRun run(test_world(), fixture, {.machine = &machine, .graph = true});
  const bool last = test_world().rank() + 1 == test_world().size();
  if (last) emulator::limit_graphs(10, GetParam());
  std::vector<double> losses;
  for (int t = 1; t <= 3; ++t) losses.push_back(run.step(run.inputs(t)).loss);
  EXPECT_EQ(run.engine().graph_counts().replays, 0);
  EXPECT_EQ(run.engine().graph_counts().captures, 1);
  EXPECT_EQ(run.engine().graph_counts().without_room, 1);

  TrainingRun issued(test_world(), fixture, {.machine = &machine});
  for (int t = 1; t <= 3; ++t) EXPECT_EQ(issued.step(issued.inputs(t)).loss, losses[t - 1]) << "step " << t;
}

INSTANTIATE_TEST_SUITE_P(AtTheCall, GraphMemory,
                         ::testing::Values(emulator::GraphCall::instantiate, emulator::GraphCall::upload));

}  // namespace
}  // namespace llampi::test
