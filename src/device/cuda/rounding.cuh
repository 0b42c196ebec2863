// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding to bfloat16, as op::AdamW defines it: the bits of the CPU device.
#pragma once

#include <cstdint>

#include "device/cuda/kernels.cuh"
#include "device/cuda/philox.cuh"
#include "device/cuda/vectors.cuh"
#include "llampi/device/operations.hpp"

namespace llampi::device::cuda {

using Rounded = op::AdamW::Rounded;

struct RoundingKey {
  std::uint64_t parameter;      ///< UpdateRange::rounding_key
  std::uint32_t step, operand;  ///< the last two words of the counter
};

/// Eight draws of 16 bits, from the lowest bit on.
struct Draws {
  std::uint32_t words[4];
  __device__ std::uint32_t operator[](int i) const { return words[i / 2] >> (16 * (i % 2)) & 0xFFFFU; }
};

/// The upper half of Philox's counter; the lower one is the number of a block.
__device__ inline std::uint64_t upper_counter(std::uint32_t step, std::uint32_t operand) {
  return step | std::uint64_t{operand} << 32;
}

__device__ inline Draws draw_block(const RoundingKey& key, std::uint64_t block) {
  const PhiloxBlock bits = philox(block, upper_counter(key.step, key.operand), key.parameter);
  return {{bits.words[0], bits.words[1], bits.words[2], bits.words[3]}};
}

/// The first `count` draws from logical element `element` on; of one block, or of two that meet.
__device__ inline Draws draws_from(const RoundingKey& key, std::uint64_t element, int count) {
  const Draws first = draw_block(key, element / 8);
  const auto skip = static_cast<int>(element % 8);
  if (skip == 0) return first;
  const Draws next = skip + count > 8 ? draw_block(key, element / 8 + 1) : Draws{};
  // Shifted by `skip` draws without indices that the compiler does not know.
  std::uint32_t w[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    w[i] = first.words[i];
    w[i + 4] = next.words[i];
  }
#pragma unroll
  for (int i = 0; i < 6; ++i) w[i] = (skip & 4) != 0 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = (skip & 2) != 0 ? w[i + 1] : w[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = (skip & 1) != 0 ? w[i] >> 16 | w[i + 1] << 16 : w[i];
  return {{w[0], w[1], w[2], w[3]}};
}

/// The bits of the bfloat16 above or below, each as likely as it is near; NaN stays NaN.
__device__ inline std::uint32_t round_bfloat16(float value, std::uint32_t draw) {
  const std::uint32_t bits = __float_as_uint(value);
  return (bits & 0x7FFFFFFFU) > 0x7F800000U ? bits >> 16 | 0x40U : (bits + draw) >> 16;
}

/// Eight numbers, two to a word, rounded with the draws of a block.
__device__ inline Vector<__nv_bfloat16, 8> round_bfloat16(const float (&x)[8], const PhiloxBlock& draws) {
  Vector<__nv_bfloat16, 8> result;
  bool nan = false;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float low = x[2 * i], high = x[2 * i + 1];
    const std::uint32_t word = draws.words[i];
    result.words[i] =
        __byte_perm(__float_as_uint(low) + (word & 0xFFFFU), __float_as_uint(high) + (word >> 16), 0x7632);
    nan = nan || low != low || high != high;
  }
  if (!nan) return result;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t word = draws.words[i];
    result.words[i] = round_bfloat16(x[2 * i], word & 0xFFFFU) | round_bfloat16(x[2 * i + 1], word >> 16)
                                                                     << 16;
  }
  return result;
}

}  // namespace llampi::device::cuda
