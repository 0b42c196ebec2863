// 16-bit floating point to float32; every value of either format has an exact float32.
#pragma once

#include <bit>
#include <cstdint>

namespace llampi {

/// bfloat16 is the upper half of a float32.
inline float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// IEEE 754 binary16: 1 sign bit, 5 exponent bits (bias 15), 10 fraction bits. NaNs keep their payload.
inline float from_float16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  const std::uint32_t fraction = bits & 0x3FFU;
  std::uint32_t magnitude;
  if (exponent == 0) {
    // Zero or subnormal: fraction * 2^-24, a normal float32, so that a thread that flushes subnormals gets it
    // too.
    magnitude = std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24F);
  } else if (exponent == 0x1F) {
    magnitude = 0x7F800000U | (fraction << 13);  // infinity, NaN
  } else {
    magnitude = ((exponent + 127 - 15) << 23) | (fraction << 13);
  }
  return std::bit_cast<float>(sign | magnitude);
}

}  // namespace llampi
