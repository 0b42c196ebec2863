// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "llampi/optim/schedule.hpp"

namespace llampi::test {
namespace {

using namespace optim;

TEST(Schedule, WarmUpRisesToLr) {
  const LearningRateSchedule s{Decay::cosine, 2.0, 0.5, 4, 12};
  EXPECT_DOUBLE_EQ(s.at(1), 0.5);
  EXPECT_DOUBLE_EQ(s.at(2), 1.0);
  EXPECT_DOUBLE_EQ(s.at(4), 2.0);
}

TEST(Schedule, DecayRunsFromTheEndOfWarmUpToTheLastStep) {
  const LearningRateSchedule cosine{Decay::cosine, 2.0, 0.5, 4, 12};
  EXPECT_DOUBLE_EQ(cosine.at(8), 1.25);
  EXPECT_DOUBLE_EQ(cosine.at(12), 0.5);
  const LearningRateSchedule linear{Decay::linear, 2.0, 0.5, 4, 12};
  EXPECT_DOUBLE_EQ(linear.at(6), 1.625);
  EXPECT_DOUBLE_EQ(linear.at(12), 0.5);
  const LearningRateSchedule constant{Decay::constant, 2.0, 0.5, 4, 12};
  EXPECT_DOUBLE_EQ(constant.at(12), 2.0);
}

TEST(Schedule, WithoutWarmUpTheFirstStepIsAlreadyBelowLr) {
  const LearningRateSchedule s{Decay::linear, 1.0, 0.0, 0, 10};
  EXPECT_DOUBLE_EQ(s.at(1), 0.9);
}

TEST(Schedule, WarmUpMayBeAsLongAsTheRun) {
  const LearningRateSchedule s{Decay::cosine, 1.0, 0.0, 5, 5};
  EXPECT_DOUBLE_EQ(s.at(5), 1.0);
}

}  // namespace
}  // namespace llampi::test
