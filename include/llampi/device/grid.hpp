// SPDX-License-Identifier: Apache-2.0
// The integer grid on which the squares of the gradients are summed (see op::SumSquares).
//
// With 2^k > max|g| >= 2^(k-1), a square s < 2^(2k) is scaled to u = s * 2^(30 - 2k) < 2^30 and cut in two
// limbs: high = floor(u), low = floor((u - high) * 2^32). Integer sums do not depend on their order; the part
// cut off is below 2^-62 of the largest square per element. Up to 2^31 elements can be summed per call
// without overflow of an int64; the carry of the low limb is moved to the high limb after each range
// (normalise()), so that sums over ranks fit as well.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace llampi::device::grid {

struct Limbs {
  std::int64_t high = 0;
  std::int64_t low = 0;
};

/// The k of the text above for a largest magnitude given as the bits of a float32.
inline int exponent(std::int32_t maximum_bits) {
  int k = 0;
  std::frexp(std::bit_cast<float>(maximum_bits), &k);
  return k;
}

/// 2^(30 - 2k): always finite and normal in float64 for finite float32.
inline double scale(int k) { return std::ldexp(1.0, 30 - 2 * k); }

inline Limbs cut(double magnitude, double scale) {
  const double u = magnitude * magnitude * scale;
  const double high = std::floor(u);
  return {static_cast<std::int64_t>(high), static_cast<std::int64_t>((u - high) * 0x1p32)};
}

inline void normalise(Limbs& sum) {
  sum.high += sum.low >> 32;
  sum.low &= 0xFFFFFFFF;
}

/// The sum of squares that the limbs stand for.
inline double value(Limbs sum, double scale) {
  return (static_cast<double>(sum.high) + static_cast<double>(sum.low) * 0x1p-32) / scale;
}

}  // namespace llampi::device::grid
