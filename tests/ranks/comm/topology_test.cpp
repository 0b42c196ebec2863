// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/topology.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "llampi/comm/comm.hpp"
#include "support/mpi_test.hpp"

namespace llampi::test {
namespace {

using namespace comm;

// Ranks with one host name share a node, also where the job runs on several.
TEST(Topology, NodesAreHosts) {
  World& world = test_world();
  const Topology& topology = world.topology();
  const auto hosts = world.all_gather(topology.host);
  std::vector<int> leaders;
  for (const std::string& host : hosts) {
    leaders.push_back(static_cast<int>(std::find(hosts.begin(), hosts.end(), host) - hosts.begin()));
  }
  const Topology expected = number_nodes(leaders, world.rank(), topology.host);
  EXPECT_FALSE(topology.host.empty());
  EXPECT_EQ(topology.nodes, expected.nodes);
  EXPECT_EQ(topology.node, expected.node);
  EXPECT_EQ(topology.local_rank, expected.local_rank);
  EXPECT_EQ(topology.local_ranks, expected.local_ranks);
  EXPECT_EQ(topology.uniform, expected.uniform);
}

TEST(Topology, OneNodeHasAllRanks) {
  const Topology topology = number_nodes({0, 0, 0}, 2, "a");
  EXPECT_EQ(topology.nodes, 1);
  EXPECT_EQ(topology.node, 0);
  EXPECT_EQ(topology.local_rank, 2);
  EXPECT_EQ(topology.local_ranks, 3);
  EXPECT_TRUE(topology.uniform);
}

TEST(Topology, RanksMayBeDealtRoundRobin) {
  const Topology topology = number_nodes({0, 1, 0, 1, 0, 1}, 3, "b");
  EXPECT_EQ(topology.nodes, 2);
  EXPECT_EQ(topology.node, 1);
  EXPECT_EQ(topology.local_rank, 1);
  EXPECT_EQ(topology.local_ranks, 3);
  EXPECT_EQ(topology.host, "b");
  EXPECT_TRUE(topology.uniform);
}

TEST(Topology, NodesAreInOrderOfTheirLowestRank) {
  const std::vector<int> leaders = {0, 1, 2, 2, 1, 2};
  const std::vector<int> nodes = {0, 1, 2, 2, 1, 2};
  const std::vector<int> local = {0, 0, 0, 1, 1, 2};
  const std::vector<int> sizes = {1, 2, 3, 3, 2, 3};
  for (int rank = 0; rank < 6; ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    const Topology topology = number_nodes(leaders, rank, "");
    EXPECT_EQ(topology.nodes, 3);
    EXPECT_EQ(topology.node, nodes[i]);
    EXPECT_EQ(topology.local_rank, local[i]);
    EXPECT_EQ(topology.local_ranks, sizes[i]);
    EXPECT_FALSE(topology.uniform);
  }
}

}  // namespace
}  // namespace llampi::test
