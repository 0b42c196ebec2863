// SPDX-License-Identifier: Apache-2.0
#include "comm/levels.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "llampi/comm/placement.hpp"

namespace llampi::test {
namespace {

using namespace comm;
using ::testing::ElementsAre;

TEST(Levels, AreThoseOfNodesWithSeveralRanks) {
  const auto levels = two_levels({7, 7, 7, 2, 2, 2}, 4);
  ASSERT_NE(levels, nullptr);
  EXPECT_THAT(levels->nodes, ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5)));
  EXPECT_EQ(levels->node, 1);
  EXPECT_EQ(levels->place, 1);
  EXPECT_THAT(levels->own_node(), ElementsAre(3, 4, 5));
  EXPECT_THAT(levels->own_parts(), ElementsAre(1, 4));
  EXPECT_THAT(levels->through, ElementsAre(1, 4));
  EXPECT_EQ(levels->rounds, 1);
}

TEST(Levels, MayBeDealtInTurns) {
  const auto levels = two_levels({0, 1, 0, 1}, 3);
  ASSERT_NE(levels, nullptr);
  EXPECT_THAT(levels->nodes, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  EXPECT_EQ(levels->node, 1);
  EXPECT_EQ(levels->place, 1);
}

TEST(Levels, AreOneWhereTwoWouldGainNothing) {
  EXPECT_EQ(two_levels({0}, 0), nullptr);
  EXPECT_EQ(two_levels({3, 3, 3}, 1), nullptr);  // one node
  EXPECT_EQ(two_levels({0, 1, 2}, 1), nullptr);  // a rank on each
}

TEST(Levels, OfUnevenNodesDivideThePartsOfOtherNodes) {
  const std::vector<int> placement = {0, 0, 0, 1, 1, 2};  // 3, 2 and 1 ranks
  const auto of = [&](int rank) { return two_levels(placement, rank); };
  EXPECT_THAT(of(1)->parts_of_place, ElementsAre(ElementsAre(0, 3), ElementsAre(1, 4), ElementsAre(2, 5)));
  EXPECT_THAT(of(3)->parts_of_place, ElementsAre(ElementsAre(0, 2, 3), ElementsAre(1, 4, 5)));
  EXPECT_THAT(of(5)->parts_of_place, ElementsAre(ElementsAre(0, 1, 2, 3, 4, 5)));
  EXPECT_THAT(of(2)->through, ElementsAre(2, 3, 5));
  EXPECT_THAT(of(5)->through, ElementsAre(2, 4, 5));
}

// Each part goes through one rank of each node, which on the owner's node is the owner; and the rounds fit their room.
TEST(Levels, HaveRoomForEveryPlacement) {
  for (int placement = 0; placement < 729; ++placement) {
    std::vector<int> nodes;
    for (int digits = placement, rank = 0; rank < 6; ++rank, digits /= 3) nodes.push_back(digits % 3);
    if (two_levels(nodes, 0) == nullptr) continue;
    for (int rank = 0; rank < 6; ++rank) {
      SCOPED_TRACE(::testing::PrintToString(nodes) + ", rank " + std::to_string(rank));
      const auto mine = two_levels(nodes, rank);
      std::vector<int> in_rounds;
      for (int round = 0; round < mine->rounds; ++round) {
        const auto parts = mine->parts_of(mine->place, round);
        EXPECT_LE(std::ssize(parts) * mine->places(), 6);
        in_rounds.insert(in_rounds.end(), parts.begin(), parts.end());
      }
      EXPECT_EQ(in_rounds, mine->own_parts());
      EXPECT_LE(mine->rounds, 2);
      EXPECT_LE(std::ssize(mine->own_parts()), (6 + mine->places() - 1) / mine->places());
      EXPECT_EQ(mine->through[static_cast<std::size_t>(mine->node)], rank);
      for (int owner = 0; owner < 6; ++owner) {
        const auto theirs = two_levels(nodes, owner);
        EXPECT_EQ(std::ranges::count(mine->own_parts(), owner), std::ranges::count(theirs->through, rank));
        EXPECT_EQ(theirs->rounds, mine->rounds);
      }
    }
  }
}

TEST(Placement, MattersWhereNodesAreNoPartsOfTheTree) {
  EXPECT_FALSE(sums_follow_placement({0, 0, 0, 0}));
  EXPECT_FALSE(sums_follow_placement({0, 1, 2, 3}));
  EXPECT_FALSE(sums_follow_placement({0, 0, 1, 1}));
  EXPECT_FALSE(sums_follow_placement({1, 1, 0, 0, 2, 2}));
  EXPECT_FALSE(sums_follow_placement({0, 0, 0, 0, 1, 1}));  // 4 + 2
  EXPECT_FALSE(sums_follow_placement({0, 0, 1, 1, 2}));     // (2 + 2) + 1
  EXPECT_TRUE(sums_follow_placement({0, 0, 0, 1}));         // (0 + 1) + (2 + 3) is not a sum of nodes
  EXPECT_TRUE(sums_follow_placement({0, 0, 1, 2}));
  EXPECT_TRUE(sums_follow_placement({0, 1, 0, 1}));
  EXPECT_TRUE(sums_follow_placement({0, 0, 0, 1, 1, 1}));
}

TEST(EvenRuns, HaveAllNumbersInOrder) {
  EXPECT_TRUE(even_runs({}).empty());
  const auto one = even_runs({3, 11, 19, 27});
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(std::tuple(one[0].begin, one[0].count, one[0].first, one[0].step), std::tuple(0, 4, 3, 8));
  const auto falling = even_runs({5, 2});
  ASSERT_EQ(falling.size(), 1U);
  EXPECT_EQ(falling[0].step, -3);
  for (const std::vector<int>& numbers : {std::vector{7}, {0, 1, 3, 5, 4}, {0, 5, 6, 7, 1}, {0, 1, 0, 1}}) {
    std::vector<int> all;
    for (const EvenRun& run : even_runs(numbers)) {
      EXPECT_EQ(run.begin, std::ssize(all));
      for (int i = 0; i < run.count; ++i) all.push_back(run.first + i * run.step);
    }
    EXPECT_EQ(all, numbers);
  }
}

}  // namespace
}  // namespace llampi::test
