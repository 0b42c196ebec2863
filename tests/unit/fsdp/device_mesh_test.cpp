// SPDX-License-Identifier: Apache-2.0
// What people and programs read about the shard groups and replicate groups of a mesh.
#include <gtest/gtest.h>

#include <vector>

#include "llampi/fsdp/device_mesh.hpp"

namespace llampi::test {
namespace {

using fsdp::describe_mesh;
using fsdp::make_device_mesh;
using fsdp::Strategy;

std::string described(Strategy strategy, int ranks, int shard_group_size = 0) {
  return describe_mesh(
      make_device_mesh(strategy, std::vector<int>(static_cast<std::size_t>(ranks)), shard_group_size));
}

TEST(DeviceMesh, IsDescribedInWords) {
  EXPECT_EQ(described(Strategy::full_shard, 1), "device mesh: 1 rank");
  EXPECT_EQ(described(Strategy::full_shard, 64), "device mesh: 1 shard group of all 64 ranks, no replicas");
  EXPECT_EQ(described(Strategy::no_shard, 3), "device mesh: no shards, each of the 3 ranks is a replica");
  EXPECT_EQ(described(Strategy::hybrid_shard, 6, 2),
            "device mesh 3 x 2: 3 shard groups (0 1 | 2 3 | 4 5), 2 replicate groups (0 2 4 | 1 3 5)");
  EXPECT_EQ(
      described(Strategy::hybrid_shard, 100, 10),
      "device mesh 10 x 10: 10 shard groups (0 1 ... 9 | 10 11 ... 19 | 20 21 ... 29 | 30 31 ... 39 | ...), "
      "10 replicate groups (0 10 ... 90 | 1 11 ... 91 | 2 12 ... 92 | 3 13 ... 93 | ...)");
}

TEST(DeviceMesh, KnowsHowManyMembersShareANode) {
  const auto mesh = make_device_mesh(Strategy::hybrid_shard, {0, 0, 0, 1, 1, 1}, 2);  // 0 1 | 2 3 | 4 5
  EXPECT_EQ(mesh.shards_on_node, 2);
  EXPECT_EQ(mesh.replicas_on_node, 2);
  EXPECT_EQ(mesh.ranks_on_node, 3);
}

}  // namespace
}  // namespace llampi::test
