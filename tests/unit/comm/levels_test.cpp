// SPDX-License-Identifier: Apache-2.0
#include "comm/levels.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  EXPECT_THAT(levels->same_place(levels->place), ElementsAre(1, 4));
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
  EXPECT_EQ(two_levels({0, 0, 1}, 1), nullptr);  // unlike numbers
}

TEST(Placement, MattersWhereNodesAreNoPartsOfTheTree) {
  EXPECT_FALSE(sums_follow_placement({0, 0, 0, 0}));
  EXPECT_FALSE(sums_follow_placement({0, 1, 2, 3}));
  EXPECT_FALSE(sums_follow_placement({0, 0, 1, 1}));
  EXPECT_FALSE(sums_follow_placement({1, 1, 0, 0, 2, 2}));
  EXPECT_FALSE(sums_follow_placement({0, 0, 0, 1}));  // one level
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
