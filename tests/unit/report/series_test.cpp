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

using ::testing::DoubleNear;
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

TEST(Series, AreSmoothedWithoutABiasAtTheBeginning) {
  EXPECT_THAT(smooth(Values{4, 4, 4}, 0.9),
              ElementsAre(DoubleNear(4, 1e-14), DoubleNear(4, 1e-14), DoubleNear(4, 1e-14)));
  // (1 * 0.5 + 3) / (0.5 + 1), the weights of a first and a second value
  EXPECT_THAT(smooth(Values{1, kNan, 3}, 0.5), ElementsAre(1, IsNan(), DoubleNear(7.0 / 3, 1e-15)));
  EXPECT_THAT(smooth(Values{1, 3}, 0), ElementsAre(1, 3));
}

TEST(Series, HaveBoundsOfWhatIsFinite) {
  const Bounds bounds = bounds_of(Values{kNan, 2, std::numeric_limits<double>::infinity(), -1});
  EXPECT_EQ(bounds.low, -1);
  EXPECT_EQ(bounds.high, 2);
  EXPECT_EQ(bounds_of(Values{kNan}).high, 1);
}

TEST(Series, HaveRoundNumbersBesideThem) {
  EXPECT_THAT(ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(ticks(0.11, 0.49, 4),
              ElementsAre(DoubleNear(0.2, 1e-15), DoubleNear(0.3, 1e-15), DoubleNear(0.4, 1e-15)));
  EXPECT_THAT(ticks(-30, 30, 3), ElementsAre(-20, 0, 20));
  EXPECT_THAT(ticks(5, 5, 4), ElementsAre(5));
}

TEST(Series, HaveAMedian) {
  EXPECT_EQ(median(Values{5, kNan, 1, 3}), 3);
  EXPECT_EQ(median(Values{4, 1, 3, 2}), 2.5);
  EXPECT_THAT(median(Values{kNan}), IsNan());
}

}  // namespace
}  // namespace llampi::test
