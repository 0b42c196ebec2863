// SPDX-License-Identifier: Apache-2.0
// fsdp.shard_group_size = node on several nodes, which here only the world's topology says that there are.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "llampi/comm/comm.hpp"
#include "support/expect_trajectory.hpp"
#include "support/mpi_test.hpp"
#include "support/simulated_nodes.hpp"

namespace llampi::test {
namespace {

using namespace fsdp;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Nodes : public ::testing::Test {
 protected:
  /// The node of each rank: one node after another, or in turns.
  static std::vector<int> consecutive(int nodes) {
    return dealt([&](int rank) { return rank * nodes / test_world().size(); });
  }
  static std::vector<int> in_turns(int nodes) {
    return dealt([&](int rank) { return rank % nodes; });
  }
  template <class NodeOf>
  static std::vector<int> dealt(NodeOf node_of) {
    std::vector<int> nodes;
    for (int rank = 0; rank < test_world().size(); ++rank) nodes.push_back(node_of(rank));
    return nodes;
  }

  Trajectory run(comm::World& world, Strategy strategy, int shard_group_size) const {
    return run_trajectory(
        world, fixture_,
        {.strategy = strategy, .accumulation = 2, .poison = true, .shard_group_size = shard_group_size});
  }

  comm::World& world_ = test_world();
  oracle::Fixture fixture_ = oracle::load("gqa_tied");
};

TEST_F(Nodes, ShardInsideANodeAndReplicateAcross) {
  for (const int nodes : {2, 3}) {
    if (world_.size() % nodes != 0) continue;
    for (const auto& node_of_rank : {consecutive(nodes), in_turns(nodes)}) {
      for (const auto strategy : {Strategy::hybrid_shard, Strategy::hybrid_shard_zero2}) {
        SCOPED_TRACE(fmt::format("{} on nodes {}", to_string(strategy), fmt::join(node_of_rank, " ")));
        SimulatedNodes world(world_, node_of_rank);
        expect_oracle(run(world, strategy, 0), fixture_, kFloat32Tolerance);

        std::vector<int> mine, replicas;
        std::vector<int> seen(static_cast<std::size_t>(nodes));  // ranks of each node so far
        for (int rank = 0; rank < world.size(); ++rank) {
          const int node = node_of_rank[static_cast<std::size_t>(rank)];
          if (node == world.topology().node) mine.push_back(rank);
          if (seen[static_cast<std::size_t>(node)]++ == world.topology().local_rank) replicas.push_back(rank);
        }
        EXPECT_THAT(world.groups(), ElementsAre(mine, replicas));
      }
    }
  }
}

// Sums and gathers over all ranks go over two levels.
TEST_F(Nodes, MayShareASumOverAllRanks) {
  for (const int nodes : {2, 3}) {
    if (world_.size() % nodes != 0) continue;
    for (const auto& node_of_rank : {consecutive(nodes), in_turns(nodes)}) {
      for (const auto strategy : {Strategy::full_shard, Strategy::no_shard}) {
        SCOPED_TRACE(fmt::format("{} on nodes {}", to_string(strategy), fmt::join(node_of_rank, " ")));
        SimulatedNodes world(world_, node_of_rank);
        expect_oracle(run(world, strategy, 0), fixture_, kFloat32Tolerance);
      }
    }
  }
}

TEST_F(Nodes, OfDifferentSizeShareASumOverAllRanks) {
  const int last = world_.size() - (world_.size() == 4 ? 1 : 2);  // 3 + 1 ranks, or 4 + 2
  for (const auto& [strategy, shard_group_size] : {std::pair{Strategy::full_shard, 0},
                                                   {Strategy::no_shard, 0},
                                                   {Strategy::hybrid_shard, world_.size() / 2}}) {
    SimulatedNodes world(world_, dealt([&](int rank) { return rank < last ? 0 : 1; }));
    expect_oracle(run(world, strategy, shard_group_size), fixture_, kFloat32Tolerance);
  }
}

TEST_F(Nodes, AreTheSameAsANumberOfRanks) {
  SimulatedNodes world(world_, consecutive(2));
  expect_same_bits(run(world, Strategy::hybrid_shard, 0),
                   run(world_, Strategy::hybrid_shard, world_.size() / 2), "shard_group_size");
}

TEST_F(Nodes, MayJoinTheirSumsBesideOthers) {
  TrajectoryOptions options{.strategy = Strategy::hybrid_shard,
                            .accumulation = 2,
                            .poison = true,
                            .shard_group_size = world_.size() / 2};
  const auto base = run_trajectory(world_, fixture_, options);
  options.all_reduce_stream = true;
  expect_same_bits(base, run_trajectory(world_, fixture_, options), "all_reduce_stream");
}

TEST_F(Nodes, OfDifferentSizeAreRefusedAsShardGroups) {
  SimulatedNodes world(world_, dealt([](int rank) { return rank == 0 ? 0 : 1; }));
  try {
    run(world, Strategy::hybrid_shard, 0);
    FAIL() << "not refused";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("one has 1 and another {}", world_.size() - 1)));
  }
}

}  // namespace
}  // namespace llampi::test
