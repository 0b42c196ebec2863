// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/clock.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace llampi::test {
namespace {

TEST(Clock, ReadsWhatItWrites) {
  EXPECT_EQ(seconds_of_utc("1970-01-02T00:00:01Z"), 86401);
  const double before = std::floor(unix_seconds());
  EXPECT_GE(seconds_of_utc(utc_now()), before);
  EXPECT_LE(seconds_of_utc(utc_now()), unix_seconds());
  for (const char* text : {"", "now", "2026-01-31T23:59:59", "2026-01-31T23:59:59Z "})
    EXPECT_TRUE(std::isnan(seconds_of_utc(text))) << text;
}

}  // namespace
}  // namespace llampi::test
