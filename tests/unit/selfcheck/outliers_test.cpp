// SPDX-License-Identifier: Apache-2.0
#include "llampi/selfcheck/outliers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace llampi::test {
namespace {

using namespace selfcheck;

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int> slow(const std::vector<double>& seconds) { return slow_ranks(seconds); }

TEST(SlowRanks, AreThoseOverAQuarterMoreThanTheMedian) {
  EXPECT_THAT(slow({1, 1.2, 1, 0.9}), IsEmpty());
  EXPECT_THAT(slow({1, 1.3, 1, 0.9}), ElementsAre(1));
  EXPECT_THAT(slow({5, 1, 1, 1, 2}), ElementsAre(0, 4));
}

TEST(SlowRanks, OfTwoTheSlowerIsNamed) {
  EXPECT_THAT(slow({2, 1}), ElementsAre(0));
  EXPECT_THAT(slow({1, 1.24}), IsEmpty());
  EXPECT_THAT(slow({1}), IsEmpty());
  EXPECT_THAT(slow({}), IsEmpty());
}

std::vector<int> others(const std::vector<std::string>& values) { return deviating(values); }

TEST(Deviating, AreThoseOfTheMinority) {
  EXPECT_THAT(others({"a", "a", "a"}), IsEmpty());
  EXPECT_THAT(others({"b", "a", "a"}), ElementsAre(0));
  EXPECT_THAT(others({"a", "b"}), ElementsAre(1));
  EXPECT_THAT(others({"b", "a", "c", "a", "b", "a"}), ElementsAre(0, 2, 4));
}

/// Links between all of `ends`, but for those of `bandwidths` at 10.
std::vector<Link> links(int ends, const std::vector<Link>& different) {
  std::vector<Link> all;
  for (int a = 0; a < ends; ++a) {
    for (int b = a + 1; b < ends; ++b) {
      all.push_back({a, b, 10});
      for (const auto& link : different) {
        if (link.a == a && link.b == b) all.back() = link;
      }
    }
  }
  return all;
}

std::vector<std::pair<int, int>> pairs(const SlowLinks& slow) {
  std::vector<std::pair<int, int>> pairs;
  for (const auto& link : slow.links) pairs.emplace_back(link.a, link.b);
  return pairs;
}

TEST(SlowLinks, AreThoseUnderHalfOfTheMedian) {
  const auto slow = find_slow_links(links(4, {{1, 3, 4.9}, {0, 2, 5.1}}));
  EXPECT_EQ(slow.median, 10);
  EXPECT_THAT(slow.ends, IsEmpty());
  EXPECT_THAT(pairs(slow), ElementsAre(std::pair(1, 3)));
  EXPECT_THAT(pairs(find_slow_links(links(3, {{0, 1, 1}}))), ElementsAre(std::pair(0, 1)));
}

TEST(SlowLinks, AnEndWithOnlySlowLinksIsNamedItself) {
  for (const int ends : {3, 4, 7}) {
    std::vector<Link> of_last;
    for (int a = 0; a + 1 < ends; ++a) of_last.push_back({a, ends - 1, 2});
    const auto slow = find_slow_links(links(ends, of_last));
    EXPECT_THAT(slow.ends, ElementsAre(ends - 1)) << ends;
    EXPECT_EQ(slow.median, 10) << ends;
    EXPECT_THAT(slow.links, IsEmpty()) << ends;
  }
}

TEST(SlowLinks, ASlowEndHidesNoOtherSlowLink) {
  const auto slow = find_slow_links(links(5, {{0, 4, 1}, {1, 4, 1}, {2, 4, 1}, {3, 4, 1}, {1, 2, 3}}));
  EXPECT_THAT(slow.ends, ElementsAre(4));
  EXPECT_THAT(pairs(slow), ElementsAre(std::pair(1, 2)));
}

TEST(SlowLinks, OneLinkHasNothingToCompareWith) {
  EXPECT_THAT(find_slow_links({{0, 1, 1}}).ends, IsEmpty());
  EXPECT_THAT(find_slow_links({{0, 1, 1}}).links, IsEmpty());
  EXPECT_EQ(find_slow_links({}).median, 0);
}

TEST(RoundsOfPairs, EachMeetsEachOtherOnceAndIsInOnePairOfARound) {
  for (int count = 0; count <= 9; ++count) {
    std::set<std::pair<int, int>> met;
    const auto rounds = rounds_of_pairs(count);
    EXPECT_EQ(std::ssize(rounds), count < 2 ? std::min(count, 1) * count : count - 1 + count % 2) << count;
    for (const auto& round : rounds) {
      std::set<int> busy;
      for (const auto& [a, b] : round) {
        EXPECT_LT(a, b);
        EXPECT_TRUE(met.emplace(a, b).second) << a << " " << b;
        EXPECT_TRUE(busy.insert(a).second && busy.insert(b).second) << a << " " << b;
      }
    }
    EXPECT_EQ(std::ssize(met), count * (count - 1) / 2);
  }
}

}  // namespace
}  // namespace llampi::test
