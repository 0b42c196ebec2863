#include "checkpoint/half.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace llampi {
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

TEST(Half, EveryFloat16) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    expect_same(from_float16(static_cast<std::uint16_t>(bits)), value_of(bits, 5, 10), bits);
  }
}

TEST(Half, EveryBfloat16) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    expect_same(from_bfloat16(static_cast<std::uint16_t>(bits)), value_of(bits, 8, 7), bits);
  }
}

TEST(Half, KnownValues) {
  EXPECT_EQ(from_float16(0x3C00), 1.0F);
  EXPECT_EQ(from_float16(0x7BFF), 65504.0F);  // the largest
  EXPECT_EQ(from_float16(0x0001), 0x1p-24F);  // the smallest
  EXPECT_EQ(from_float16(0xC248), -3.140625F);
  EXPECT_EQ(from_bfloat16(0xC049), -3.140625F);
}

}  // namespace
}  // namespace llampi
