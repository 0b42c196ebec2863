// SPDX-License-Identifier: Apache-2.0
#include "llampi/report/series.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace llampi::test {
namespace {

using namespace report;

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsNan;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Values = std::vector<double>;

TEST(Series, AreThinnedToTheMeanAndTheEndsOfEachGroup) {
  EXPECT_EQ(group_size(0, 4), 1U);
  EXPECT_EQ(group_size(4, 4), 1U);
  EXPECT_EQ(group_size(5, 4), 2U);
  const Thinned thinned = thin(Values{1, 3, kNan, 5, kNan, kNan, 7}, 2);
  EXPECT_THAT(thinned.mean, ElementsAre(2, 5, IsNan(), 7));
  EXPECT_THAT(thinned.low, ElementsAre(1, 5, IsNan(), 7));
  EXPECT_THAT(thinned.high, ElementsAre(3, 5, IsNan(), 7));
  EXPECT_THAT(ends_of_groups(Values{1, 2, 3, 4, 5}, 2), ElementsAre(2, 4, 5));
  EXPECT_THAT(thin(Values{4, 5}, 1).mean, ElementsAre(4, 5));
  EXPECT_THAT(thin(Values(), 3).mean, IsEmpty());
}

TEST(Series, HaveBoundsOfWhatIsFinite) {
  const Bounds bounds = bounds_of(Values{kNan, 2, std::numeric_limits<double>::infinity(), -1});
  EXPECT_EQ(bounds.low, -1);
  EXPECT_EQ(bounds.high, 2);
  EXPECT_EQ(bounds_of(Values{kNan}).high, 1);
}

TEST(Series, HaveAMedian) {
  EXPECT_EQ(median(Values{5, kNan, 1, 3}), 3);
  EXPECT_EQ(median(Values{4, 1, 3, 2}), 2.5);
  EXPECT_THAT(median(Values{kNan}), IsNan());
}

}  // namespace
}  // namespace llampi::test
