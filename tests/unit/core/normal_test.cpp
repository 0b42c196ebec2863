// SPDX-License-Identifier: Apache-2.0
// Normal numbers against the formula in long double.
#include "llampi/core/normal.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "llampi/core/philox.hpp"

namespace llampi::test {
namespace {

double normal_of(std::uint64_t first, std::uint64_t second) {
  return standard_normal<ScalarArithmetic>(first, second);
}

/// The angle is a float64, as the header says.
long double expected(std::uint64_t first, std::uint64_t second) {
  const long double u1 = (static_cast<long double>(first >> 11) + 1) * 0x1p-53L;
  const double angle = 0x1.921fb54442d18p+2 * (static_cast<double>(second >> 11) * 0x1p-53);
  return std::sqrt(-2 * std::log(u1)) * std::cos(static_cast<long double>(angle));
}

/// In units of 2^-53 of the number.
long double error(std::uint64_t first, std::uint64_t second) {
  const long double is = normal_of(first, second), right = expected(first, second);
  return is == right ? 0 : std::abs(is - right) / std::abs(right) * 0x1p53L;
}

TEST(StandardNormal, IsTheFormulaToThreeUnitsInTheLastPlace) {
  const RandomStream stream(1, "bits");
  long double worst = 0;
  for (std::uint64_t i = 0; i < 400000; ++i)
    worst = std::max(worst, error(stream.bits(2 * i), stream.bits(2 * i + 1)));
  EXPECT_LT(worst, 3.5L);
}

TEST(StandardNormal, IsRightWhereTheFormulaIsSteepOrItsPiecesMeet) {
  constexpr std::uint64_t kStep = std::uint64_t{1} << 11, kLast = ~std::uint64_t{0};
  std::vector<std::uint64_t> firsts{0, kStep, 2 * kStep, kLast - kStep, kLast - 2 * kStep}, seconds{0, kLast};
  for (int shift = 11; shift < 64; ++shift) {  // powers of two, and around sqrt(1/2) of each
    const std::uint64_t power = std::uint64_t{1} << shift;
    const auto root = static_cast<std::uint64_t>(static_cast<double>(power) * std::sqrt(0.5)) & ~(kStep - 1);
    firsts.insert(firsts.end(), {power - kStep, power, root - kStep, root, root + kStep});
  }
  for (std::uint64_t eighth = 0; eighth < 8; ++eighth) {  // of a turn
    const std::uint64_t at = eighth << 61;
    for (const std::uint64_t by : {std::uint64_t{0}, kStep, 2 * kStep, std::uint64_t{1} << 40})
      seconds.insert(seconds.end(), {at + by, at - by});
  }
  for (const std::uint64_t first : firsts) {
    for (const std::uint64_t second : seconds)
      ASSERT_LT(error(first, second), 3.5L) << first << " " << second;
  }
  EXPECT_EQ(normal_of(kLast, 0), 0.0);  // u1 = 1
  EXPECT_EQ(normal_of(0, 0), std::sqrt(-2 * std::log(0x1p-53)));
}

}  // namespace
}  // namespace llampi::test
