// SPDX-License-Identifier: Apache-2.0
// The 16-bit floating-point formats, as bits, from and to float32. Without branches, so that loops over these
// functions vectorise, and without float32 subnormals in float16's conversions, so that a thread that flushes
// subnormals gets the same.
#pragma once

#include <bit>
#include <cstdint>

namespace llampi {

enum class DType : std::uint8_t;  // tensor.hpp

namespace half_detail {

/// condition ? a : b. As bits: the compiler would move the float32 arithmetic of `a` into a branch.
constexpr std::uint32_t select(bool condition, std::uint32_t a, std::uint32_t b) {
  return b ^ ((a ^ b) & (0U - static_cast<std::uint32_t>(condition)));
}

}  // namespace half_detail

/// bfloat16 is the upper half of a float32: 1 sign bit, 8 exponent bits, 7 fraction bits. Exact.
inline float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// The nearest bfloat16, ties to even; too large becomes infinite. NaN stays NaN, made quiet.
inline std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t upper = bits >> 16;
  const std::uint32_t rounded = (bits + 0x7FFFU + (upper & 1U)) >> 16;
  const bool nan = static_cast<std::int32_t>(bits & 0x7FFFFFFFU) > 0x7F800000;
  return static_cast<std::uint16_t>(nan ? upper | 0x40U : rounded);
}

/// IEEE 754 binary16: 1 sign bit, 5 exponent bits (bias 15), 10 fraction bits. Exact; NaN keeps its payload.
inline float from_float16(std::uint16_t bits) {
  constexpr std::uint32_t kRebias = (127 - 15) << 23;
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t magnitude = bits & 0x7FFFU;
  const std::uint32_t exponent = magnitude & 0x7C00U;
  const std::uint32_t normal = (magnitude << 13) + kRebias;
  const std::uint32_t special = normal + kRebias;  // infinity, NaN: the largest exponent becomes the largest
  // Zero or subnormal, n * 2^-24: n in the last places of 0.5, which is then taken away.
  const float small = std::bit_cast<float>(0x3F000000U + magnitude) - 0.5F;
  const std::uint32_t large = exponent == 0x7C00U ? special : normal;
  return std::bit_cast<float>(sign |
                              half_detail::select(exponent == 0, std::bit_cast<std::uint32_t>(small), large));
}

/// The nearest float16, ties to even; 65520 and more becomes infinite. NaN stays NaN, made quiet.
inline std::uint16_t to_float16(float value) {
  constexpr std::uint32_t kRebias = (127 - 15) << 23;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const auto magnitude = static_cast<std::int32_t>(bits & 0x7FFFFFFFU);
  const auto unsigned_magnitude = static_cast<std::uint32_t>(magnitude);
  // Below 2^-14 float16 is subnormal, n * 2^-24: added to 0.5, whose last place is 2^-24, the sum is rounded
  // to n.
  const float beside_half = std::bit_cast<float>(unsigned_magnitude) + 0.5F;
  const std::uint32_t small = std::bit_cast<std::uint32_t>(beside_half) - 0x3F000000U;
  const std::uint32_t normal =
      (unsigned_magnitude - kRebias + 0x0FFFU + ((unsigned_magnitude >> 13) & 1U)) >> 13;
  const std::uint32_t nan = 0x7E00U | ((unsigned_magnitude >> 13) & 0x3FFU);
  const std::uint32_t large = magnitude > 0x7F800000 ? nan : 0x7C00U;
  const std::uint32_t rounded = half_detail::select(magnitude < 0x38800000, small, normal);
  return static_cast<std::uint16_t>(sign | half_detail::select(magnitude >= 0x47800000, large, rounded));
}

/// Of whole arrays: the 16-bit numbers are of this dtype, bfloat16 or float16.
void widen(DType dtype, const std::uint16_t* bits, std::int64_t elements, float* values);
void narrow(DType dtype, const float* values, std::int64_t elements, std::uint16_t* bits);

}  // namespace llampi
