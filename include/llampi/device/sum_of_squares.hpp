// SPDX-License-Identifier: Apache-2.0
// The exact sum of squares of float32 numbers, as a fixed-point number wide enough for all of them (Kulisch's
// accumulator; Neal, arXiv 1505.05571): digit j counts 2^(32 (j - 10)). Squares reach from 2^-298 to below 2^256, so nothing is
// rounded, and integers do not depend on the order in which they are added. Up to 2^31 squares fit into the int64 of a digit;
// 2^40 and more if carries are moved on between some thousands of them.
#pragma once

#include <cmath>
#include <cstdint>

#include "llampi/core/host_device.hpp"

namespace llampi::device {

/// In memory as int64 [1, kSumOfSquaresNumbers]; all zeros is the empty sum. Sums of ranks are added number by number.
struct SumOfSquares {
  static constexpr int kDigits = 20;
  static constexpr int kBits = 32;      ///< of a digit, once carries are moved on
  static constexpr int kLowest = -320;  ///< digit 0 counts 2^kLowest
  static constexpr std::uint64_t kMask = 0xFFFFFFFF;
  static constexpr std::int32_t kInfinity = 0x7F800000;  ///< bits of a float32; those of NaN are above

  std::int64_t digits[kDigits];
  std::int64_t infinities, nans;  ///< above 0 if there was one
};
inline constexpr int kSumOfSquaresNumbers = SumOfSquares::kDigits + 2;
static_assert(sizeof(SumOfSquares) == kSumOfSquaresNumbers * sizeof(std::int64_t));

/// A part of such a number: digits first, first + 1 and first + 2, each below 2^32.
struct ThreeDigits {
  int first;
  std::uint64_t amounts[3];
};

/// Those of count * 2^exponent, exponent <= 255. What is below 2^kLowest is cut off; no square of a float32 has such
/// bits.
LLAMPI_HOST_DEVICE inline ThreeDigits digits_of(std::uint64_t count, int exponent) {
  int position = exponent - SumOfSquares::kLowest;
  if (position < 0) {
    count = position > -64 ? count >> -position : 0;
    position = 0;
  }
  const int shift = position % SumOfSquares::kBits;
  const std::uint64_t low = count << shift;
  return {.first = position / SumOfSquares::kBits,
          .amounts = {low & SumOfSquares::kMask, low >> SumOfSquares::kBits, (count >> 1) >> (63 - shift)}};
}

/// sum += count * 2^exponent
inline void add(SumOfSquares& sum, std::uint64_t count, int exponent) {
  const ThreeDigits digits = digits_of(count, exponent);
  for (int j = 0; j < 3; ++j) sum.digits[digits.first + j] += static_cast<std::int64_t>(digits.amounts[j]);
}

/// @param bits of the magnitude of a float32 that is not finite
LLAMPI_HOST_DEVICE inline std::int64_t& count_of(SumOfSquares& sum, std::int32_t bits) {
  return bits > SumOfSquares::kInfinity ? sum.nans : sum.infinities;
}

inline SumOfSquares& operator+=(SumOfSquares& sum, const SumOfSquares& other) {
  for (int j = 0; j < SumOfSquares::kDigits; ++j) sum.digits[j] += other.digits[j];
  sum.infinities += other.infinities;
  sum.nans += other.nans;
  return sum;
}

/// The same sum with digits below 2^32, as it has only once.
LLAMPI_HOST_DEVICE inline SumOfSquares with_carries(SumOfSquares sum) {
  for (int j = 0; j + 1 < SumOfSquares::kDigits; ++j) {
    sum.digits[j + 1] += sum.digits[j] >> SumOfSquares::kBits;
    sum.digits[j] &= static_cast<std::int64_t>(SumOfSquares::kMask);
  }
  return sum;
}

/// In float64, from the lowest digit up, so the same bits everywhere; infinity or NaN if there was one.
LLAMPI_HOST_DEVICE inline double value_of(const SumOfSquares& sum) {
  if (sum.nans > 0) return __builtin_nan("");
  if (sum.infinities > 0) return __builtin_huge_val();
  const SumOfSquares unique = with_carries(sum);
  double value = 0, weight = 0x1p-320;
  for (int j = 0; j < SumOfSquares::kDigits; ++j, weight *= 0x1p32)
    value += static_cast<double>(unique.digits[j]) * weight;
  return value;
}

/// As op::FinishNorm defines them.
struct ClippedNorm {
  double grad_norm, clip_coefficient;
};
LLAMPI_HOST_DEVICE inline ClippedNorm clipped_norm(const SumOfSquares& sum, double max_norm,
                                                   double loss_scale) {
  const double norm = std::sqrt(value_of(sum)) / loss_scale;
  const double coefficient = max_norm / (norm + 1e-6);
  // Written so that a NaN stays a NaN.
  const double clip = max_norm == 0 || coefficient >= 1 ? 1.0 : coefficient;
  return {.grad_norm = norm, .clip_coefficient = clip / loss_scale};
}

}  // namespace llampi::device
