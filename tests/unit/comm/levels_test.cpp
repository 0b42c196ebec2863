// SPDX-License-Identifier: Apache-2.0
#include "comm/levels.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace llampi::test
