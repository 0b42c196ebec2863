// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/half.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace llampi::test {
namespace {

/// Value of a binary floating-point number from its fields, in float64: (-1)^s * 1.f * 2^(e - bias), 0.f *
/// 2^(1 - bias).
double value_of(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const int all_ones = (1 << exponent_bits) - 1, bias = all_ones / 2;
  const auto exponent = static_cast<int>(bits >> fraction_bits) & all_ones;
  const auto fraction =
      static_cast<double>(bits & ((1U << fraction_bits) - 1)) / std::pow(2.0, fraction_bits);
  const double sign = (bits >> (exponent_bits + fraction_bits)) != 0 ? -1 : 1;
  if (exponent == all_ones) return fraction == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * fraction * std::pow(2.0, 1 - bias);
  return sign * (1 + fraction) * std::pow(2.0, exponent - bias);
}

void expect_same(float actual, double expected, std::uint32_t bits) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(actual)) << bits;
  } else {
    EXPECT_EQ(static_cast<double>(actual), expected) << bits;
    EXPECT_EQ(std::signbit(actual), std::signbit(expected)) << bits;
  }
}

TEST(Half, EveryFloat16IsTheNumberOfItsBits) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    expect_same(from_float16(static_cast<std::uint16_t>(bits)), value_of(bits, 5, 10), bits);
  }
}

TEST(Half, EveryBfloat16IsTheNumberOfItsBits) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    expect_same(from_bfloat16(static_cast<std::uint16_t>(bits)), value_of(bits, 8, 7), bits);
  }
}

/// Around every pair of neighbours: the bits `finite_end` are infinity's, and the step to it from the largest
/// finite value is as long as the one before.
template <class From, class To>
void expect_nearest(std::uint16_t finite_end, From from, To to) {
  for (std::uint32_t bits = 0; bits < finite_end; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits), high = static_cast<std::uint16_t>(bits + 1);
    const std::uint16_t even = low % 2 == 0 ? low : high;
    const float here = from(low);
    const double step = high < finite_end
                            ? static_cast<double>(from(high)) - here
                            : here - static_cast<double>(from(static_cast<std::uint16_t>(low - 1)));
    const auto middle = static_cast<float>(here + step / 2);  // exact: one more bit
    for (const float sign : {1.0F, -1.0F}) {
      const auto expect = [&](float value, std::uint16_t expected) {
        ASSERT_EQ(to(sign * value), expected | (sign < 0 ? 0x8000 : 0)) << bits << ": " << value;
      };
      expect(here, low);
      expect(middle, even);
      expect(std::nextafter(middle, 0.0F), low);
      expect(std::nextafter(middle, INFINITY), high);
    }
  }
}

TEST(Half, RoundsToTheNearestFloat16) {
  expect_nearest(0x7C00, from_float16, to_float16);
  for (const float large : {65536.0F, 1e10F, 3.4e38F, INFINITY}) {
    EXPECT_EQ(to_float16(large), 0x7C00);
    EXPECT_EQ(to_float16(-large), 0xFC00);
  }
  EXPECT_EQ(to_float16(0x1p-149F), 0);
  EXPECT_EQ(to_float16(-0x1p-149F), 0x8000);
}

TEST(Half, RoundsToTheNearestBfloat16) {
  expect_nearest(0x7F80, from_bfloat16, to_bfloat16);
  EXPECT_EQ(to_bfloat16(INFINITY), 0x7F80);
  EXPECT_EQ(to_bfloat16(-INFINITY), 0xFF80);
}

TEST(Half, NansStayNans) {
  for (std::uint32_t place = 0; place < 23; ++place) {
    for (const std::uint32_t fraction : {1U << place, (2U << place) - 1, 0x7FFFFFU}) {
      for (const std::uint32_t sign : {0U, 0x80000000U}) {
        const auto nan = std::bit_cast<float>(sign | 0x7F800000U | fraction);
        EXPECT_TRUE(std::isnan(from_float16(to_float16(nan)))) << fraction;
        EXPECT_TRUE(std::isnan(from_bfloat16(to_bfloat16(nan)))) << fraction;
        EXPECT_EQ(to_float16(nan) >> 15, sign >> 31) << fraction;
        EXPECT_EQ(to_bfloat16(nan) >> 15, sign >> 31) << fraction;
      }
    }
  }
}

TEST(Half, HasKnownValues) {
  EXPECT_EQ(from_float16(0x3C00), 1.0F);
  EXPECT_EQ(from_float16(0x7BFF), 65504.0F);  // the largest
  EXPECT_EQ(from_float16(0x0001), 0x1p-24F);  // the smallest
  EXPECT_EQ(from_float16(0xC248), -3.140625F);
  EXPECT_EQ(from_bfloat16(0xC049), -3.140625F);
  EXPECT_EQ(to_float16(65519.996F), 0x7BFF);
  EXPECT_EQ(to_float16(65520.0F), 0x7C00);
  EXPECT_EQ(to_float16(-3.140625F), 0xC248);
  EXPECT_EQ(to_float16(1.0F / 3), 0x3555);
  EXPECT_EQ(to_bfloat16(1.0F / 3), 0x3EAB);
}

}  // namespace
}  // namespace llampi::test
