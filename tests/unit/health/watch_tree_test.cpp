// SPDX-License-Identifier: Apache-2.0
// Who tells whom, on nodes that are not there.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "health/watch_tree.hpp"

namespace llampi::test {
namespace {

using namespace health;

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int> nodes_of(const std::vector<int>& ranks_of_node) {
  std::vector<int> node_of_rank;
  for (int node = 0; node < std::ssize(ranks_of_node); ++node)
    node_of_rank.insert(node_of_rank.end(), static_cast<std::size_t>(ranks_of_node[node]), node);
  return node_of_rank;
}

std::vector<int> equal_nodes(int nodes, int per_node) {
  return nodes_of(std::vector<int>(static_cast<std::size_t>(nodes), per_node));
}

/// As mpirun --map-by node places them.
std::vector<int> in_turn(int nodes, int per_node) {
  std::vector<int> node_of_rank;
  for (int rank = 0; rank < nodes * per_node; ++rank) node_of_rank.push_back(rank % nodes);
  return node_of_rank;
}

std::vector<std::vector<int>> placements() {
  return {{0},
          equal_nodes(1, 2),
          equal_nodes(1, 7),
          equal_nodes(2, 1),
          equal_nodes(3, 1),
          nodes_of({3, 1, 2}),
          equal_nodes(9, 1),
          equal_nodes(10, 2),
          in_turn(10, 3),
          nodes_of({1, 5, 2, 2, 1, 1, 1, 7, 1, 1, 2, 3}),
          equal_nodes(100, 1),
          in_turn(40, 2)};
}

constexpr auto kNoneLost = [](int) { return false; };

TEST(WatchTree, HasNodesBelowNodesAndRanksBelowTheFirstOfTheirNode) {
  const auto nodes = nodes_of({2, 1, 3, 1, 1});
  const WatchTree tree(nodes, 2);  // of nodes: 0 above 1 and 3, 1 above 2, 3 above 4
  EXPECT_THAT(tree.children(0), ElementsAre(1, 2, 6));
  EXPECT_THAT(tree.children(1), IsEmpty());
  EXPECT_THAT(tree.children(2), ElementsAre(3));
  EXPECT_THAT(tree.children(3), ElementsAre(4, 5));
  EXPECT_THAT(tree.children(6), ElementsAre(7));
  EXPECT_THAT(tree.subtree(2), ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(tree.depth(), 3);
  EXPECT_THAT(tree.monitors(), ElementsAre(0, 2));
  EXPECT_THAT(tree.parents(5), ElementsAre(3, 0, 2));
  EXPECT_THAT(tree.parents(3), ElementsAre(2, 0));
  EXPECT_THAT(tree.parents(2), ElementsAre(0));
  EXPECT_THAT(tree.parents(0), IsEmpty());
}

TEST(WatchTree, HasMonitorsOnTwoNodesWhereThereAreTwo) {
  EXPECT_THAT(WatchTree(equal_nodes(1, 1)).monitors(), ElementsAre(0));
  EXPECT_THAT(WatchTree(equal_nodes(1, 4)).monitors(), ElementsAre(0, 1));
  EXPECT_THAT(WatchTree(nodes_of({3, 3, 2})).monitors(), ElementsAre(0, 3));
  EXPECT_THAT(WatchTree(in_turn(2, 3)).monitors(), ElementsAre(0, 1));
}

TEST(WatchTree, ReachesEveryRankOnce) {
  for (const auto& nodes : placements()) {
    for (const int fan_out : {1, 2, 3, 8}) {
      const WatchTree tree(nodes, fan_out);
      const int ranks = static_cast<int>(nodes.size());
      std::vector<int> seen;
      int deepest = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto children = tree.children(rank);
        const auto on_node = std::count(nodes.begin(), nodes.end(), nodes[rank]);
        EXPECT_LE(std::ssize(children), fan_out + on_node - 1);
        std::vector<int> below = {rank};
        for (const int child : children) {
          EXPECT_EQ(tree.parent(child), rank);
          const auto of_child = tree.subtree(child);
          below.insert(below.end(), of_child.begin(), of_child.end());
        }
        std::sort(below.begin(), below.end());
        EXPECT_EQ(tree.subtree(rank), below);
        seen.insert(seen.end(), children.begin(), children.end());
        int steps = 0;
        for (int above = tree.parent(rank); above >= 0; above = tree.parent(above)) ++steps;
        deepest = std::max(deepest, steps);
      }
      EXPECT_EQ(tree.parent(0), -1);
      EXPECT_EQ(std::ssize(tree.subtree(0)), ranks);
      EXPECT_EQ(std::ssize(seen), ranks - 1);
      EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), seen.size());
      EXPECT_EQ(tree.depth(), deepest);
      EXPECT_EQ(tree.parent(tree.monitors().back()), ranks > 1 ? 0 : -1);
    }
  }
}

TEST(WatchTree, IsFlatForAThousandNodes) {
  for (const int nodes : {1, 8, 9, 64, 128, 512, 1024, 4096}) {
    const WatchTree tree(equal_nodes(nodes, 1));
    EXPECT_LE(tree.depth(), std::ceil(std::log(nodes) / std::log(WatchTree::kFanOut))) << nodes;
  }
  EXPECT_EQ(WatchTree(equal_nodes(128, 8)).depth(), 4);  // 1024 ranks
  EXPECT_EQ(WatchTree(equal_nodes(512, 8)).depth(), 4);  // 4096
}

// Of any ranks that are lost at once there is one that says so, and no other rank is taken for lost with them.
TEST(WatchTree, HasSomeoneForEachRankWhicheverAreLost) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (const auto& nodes : placements()) {
    const int ranks = static_cast<int>(nodes.size());
    const WatchTree tree(nodes, 2);
    for (int turn = 0; turn < 30; ++turn) {
      const double share = std::uniform_real_distribution<double>(0, 1)(random);
      std::vector<bool> lost(static_cast<std::size_t>(ranks));
      for (int rank = 0; rank < ranks; ++rank) lost[rank] = std::bernoulli_distribution(share)(random);
      const auto is_lost = [&](int rank) { return static_cast<bool>(lost[static_cast<std::size_t>(rank)]); };
      const auto monitors = tree.monitors();
      const auto judge = std::find_if_not(monitors.begin(), monitors.end(), is_lost);
      if (judge == monitors.end()) continue;  // then each rank ends the job by itself
      std::set<int> known = {*judge};         // to the judge: its charges, theirs, ...
      std::vector<int> tell = {*judge};
      while (!tell.empty()) {
        const int rank = tell.back();
        tell.pop_back();
        for (const int reporter : tree.reporters(rank, is_lost)) {
          known.insert(reporter);
          if (is_lost(reporter)) continue;
          const auto parents = tree.parents(reporter);
          const auto first = std::find_if_not(parents.begin(), parents.end(), is_lost);
          if (first != parents.end() && *first == rank) tell.push_back(reporter);
        }
      }
      EXPECT_EQ(std::ssize(known), ranks);
    }
  }
}

TEST(WatchTree, LeavesMostRanksAloneWhenOneIsLost) {
  const auto nodes = equal_nodes(64, 4);
  const WatchTree tree(nodes);
  const auto first_child_lost = [](int rank) { return rank == 4; };
  EXPECT_EQ(tree.reporters(0, kNoneLost), tree.children(0));
  EXPECT_EQ(tree.reporters(0, first_child_lost).size(), tree.children(0).size() + tree.children(4).size());
  EXPECT_EQ(tree.reporters(8, first_child_lost), tree.children(8));
  const auto root_lost = [](int rank) { return rank == 0; };
  EXPECT_THAT(tree.reporters(4, root_lost), Contains(0)) << "of which the deputy then speaks";
  for (const int child : tree.children(0)) {
    if (child == 4) continue;
    EXPECT_THAT(tree.reporters(4, root_lost), Contains(child));
  }
}

}  // namespace
}  // namespace llampi::test
