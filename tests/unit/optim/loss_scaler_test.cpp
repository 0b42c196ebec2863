// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "llampi/optim/loss_scaler.hpp"

namespace llampi::test {
namespace {

using namespace optim;

void good_steps(LossScaler& scaler, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) scaler.update(false);
}

TEST(LossScaler, StartsAsPyTorchsDoes) {
  const LossScaler scaler;
  EXPECT_EQ(scaler.scale, 65536);
  EXPECT_EQ(scaler.good_steps, 0);
}

TEST(LossScaler, AnOverflowHalvesTheScale) {
  LossScaler scaler;
  scaler.update(true);
  EXPECT_EQ(scaler.scale, 32768);
  scaler.update(true);
  EXPECT_EQ(scaler.scale, 16384);
}

TEST(LossScaler, DoublesAfter2000GoodSteps) {
  LossScaler scaler;
  good_steps(scaler, 1999);
  EXPECT_EQ(scaler.scale, 65536);
  EXPECT_EQ(scaler.good_steps, 1999);
  scaler.update(false);
  EXPECT_EQ(scaler.scale, 131072);
  EXPECT_EQ(scaler.good_steps, 0);
  good_steps(scaler, 1999);
  EXPECT_EQ(scaler.scale, 131072);
  scaler.update(false);
  EXPECT_EQ(scaler.scale, 262144);
}

TEST(LossScaler, AnOverflowStartsTheCountAgain) {
  LossScaler scaler;
  good_steps(scaler, 1999);
  scaler.update(true);
  EXPECT_EQ(scaler.good_steps, 0);
  good_steps(scaler, 1999);
  EXPECT_EQ(scaler.scale, 32768);
  scaler.update(false);
  EXPECT_EQ(scaler.scale, 65536);
}

TEST(LossScaler, ContinuesWhereACheckpointStopped) {
  LossScaler scaler = {.scale = 1024, .good_steps = 1999};
  scaler.update(false);
  EXPECT_EQ(scaler.scale, 2048);
}

TEST(LossScaler, TheScaleAndItsReciprocalStayNormalInFloat32) {
  const auto usable = [](double scale) {
    return std::isnormal(static_cast<float>(scale)) && std::isnormal(1 / static_cast<float>(scale));
  };
  LossScaler small, large;
  for (int i = 0; i < 300; ++i) {
    small.update(true);
    good_steps(large, LossScaler::kGrowthInterval);
    ASSERT_TRUE(usable(small.scale)) << small.scale;
    ASSERT_TRUE(usable(large.scale)) << large.scale;
  }
  EXPECT_EQ(small.scale, LossScaler::kSmallestScale);
  EXPECT_EQ(large.scale, LossScaler::kLargestScale);
  EXPECT_FALSE(usable(2 * LossScaler::kLargestScale)) << "the bound is no tighter than it must be";
  good_steps(small, LossScaler::kGrowthInterval);
  large.update(true);
  EXPECT_EQ(small.scale, 2 * LossScaler::kSmallestScale);
  EXPECT_EQ(large.scale, LossScaler::kLargestScale / 2);
}

}  // namespace
}  // namespace llampi::test
