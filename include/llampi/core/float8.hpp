// SPDX-License-Identifier: Apache-2.0
// The 8-bit floating-point formats (Micikevicius et al., arXiv 2209.05433), as bits, from and to float32, and the
// scale with which a tensor is cast to one of them. Bits, rounding and NaN are those of PyTorch's float8_e4m3fn and
// float8_e5m2; what is too large is clamped here, where PyTorch gives NaN or infinity.
#pragma once

#include <cstdint>

#include "llampi/core/host_device.hpp"
#include "llampi/core/tensor.hpp"

namespace llampi {
namespace float8_detail {

// std::bit_cast is nothing that kernels can call.
LLAMPI_HOST_DEVICE constexpr std::uint32_t bits_of(float x) { return __builtin_bit_cast(std::uint32_t, x); }
LLAMPI_HOST_DEVICE constexpr float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

}  // namespace float8_detail

/// 1 sign bit, then exponent, then `fraction_bits`.
struct Float8Format {
  int fraction_bits;
  int bias;
  int largest_exponent;  ///< the largest finite number is 1.75 * 2^largest_exponent

  LLAMPI_HOST_DEVICE constexpr std::uint32_t largest_bits() const {  // of a float32
    return (static_cast<std::uint32_t>(largest_exponent + 127) << 23) | 0x600000U;
  }
};
inline constexpr Float8Format kE4m3{3, 7, 8};    ///< up to 448; no infinity
inline constexpr Float8Format kE5m2{2, 15, 15};  ///< up to 57344; has infinity
LLAMPI_HOST_DEVICE constexpr bool is_float8(DType dtype) {
  return dtype == DType::float8_e4m3fn || dtype == DType::float8_e5m2;
}
/// Of one of the two 8-bit dtypes.
LLAMPI_HOST_DEVICE constexpr Float8Format float8_format(DType dtype) {
  return dtype == DType::float8_e5m2 ? kE5m2 : kE4m3;
}

/// The nearest number of the format, ties to even; what is larger than the largest, infinity too, becomes the
/// largest. NaN stays NaN and keeps its sign.
LLAMPI_HOST_DEVICE constexpr std::uint8_t to_float8(Float8Format format, float value) {
  const auto bits = float8_detail::bits_of(value);
  const std::uint32_t sign = (bits >> 24) & 0x80U;
  const std::uint32_t any_magnitude = bits & 0x7FFFFFFFU;
  if (any_magnitude > 0x7F800000U) return static_cast<std::uint8_t>(sign | 0x7FU);
  const std::uint32_t largest = format.largest_bits();
  const std::uint32_t magnitude = any_magnitude < largest ? any_magnitude : largest;
  const int shift = 23 - format.fraction_bits;
  const auto smallest_normal = static_cast<std::uint32_t>(128 - format.bias) << 23;
  std::uint32_t rounded = 0;
  if (magnitude < smallest_normal) {
    // n * 2^(1 - bias - fraction_bits): added to a number whose last place is that, the sum is rounded to n.
    const auto place = static_cast<std::uint32_t>(127 + 24 - format.bias - format.fraction_bits) << 23;
    rounded =
        float8_detail::bits_of(float8_detail::float_of(magnitude) + float8_detail::float_of(place)) - place;
  } else {
    const auto rebias = static_cast<std::uint32_t>(127 - format.bias) << 23;
    const std::uint32_t half = (1U << (shift - 1)) - 1U + ((magnitude >> shift) & 1U);
    rounded = (magnitude - rebias + half) >> shift;
  }
  return static_cast<std::uint8_t>(sign | rounded);
}

/// Exact.
LLAMPI_HOST_DEVICE constexpr float from_float8(Float8Format format, std::uint8_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80U) << 24;
  const std::uint32_t magnitude = bits & 0x7FU;
  const std::uint32_t fraction = magnitude & ((1U << format.fraction_bits) - 1U);
  const std::uint32_t exponent = magnitude >> format.fraction_bits;
  const int shift = 23 - format.fraction_bits;
  const auto rebias = static_cast<std::uint32_t>(127 - format.bias) << 23;
  if (magnitude << shift >= format.largest_bits() - rebias + (1U << shift)) {  // beyond the largest
    const bool infinite = format.bias == kE5m2.bias && fraction == 0;
    return float8_detail::float_of(sign | (infinite ? 0x7F800000U : 0x7FC00000U));
  }
  if (exponent == 0) {
    const auto place = static_cast<std::uint32_t>(127 + 1 - format.bias - format.fraction_bits) << 23;
    const float value = static_cast<float>(fraction) * float8_detail::float_of(place);
    return float8_detail::float_of(sign | float8_detail::bits_of(value));
  }
  return float8_detail::float_of(sign | ((magnitude << shift) + rebias));
}

/// The scales of a tensor are 2^e and 2^-e, with e at most this: so that the product of the inverse scales of two
/// tensors of small numbers is a normal float32.
inline constexpr int kLargestScaleExponent = 60;

/// The e of the scale with which a tensor is multiplied before it is cast: the largest with which `maximum` stays
/// within the format, and no more than kLargestScaleExponent. 0 if the tensor has no magnitude.
/// @param maximum_bits of the largest finite magnitude, as float32
LLAMPI_HOST_DEVICE constexpr int float8_scale_exponent(Float8Format format, std::int32_t maximum_bits) {
  if (maximum_bits == 0) return 0;
  const int exponent = (maximum_bits >> 23) - 127;
  const bool reaches_next = (maximum_bits & 0x7FFFFF) > 0x600000;  // beyond 1.75
  const int scale = format.largest_exponent - exponent - (reaches_next ? 1 : 0);
  return scale < kLargestScaleExponent ? scale : kLargestScaleExponent;
}

LLAMPI_HOST_DEVICE constexpr float power_of_two(int exponent) {  // of a normal float32
  return float8_detail::float_of(static_cast<std::uint32_t>(exponent + 127) << 23);
}

}  // namespace llampi
