// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 as in core/philox.hpp, a block per lane of 64 bits. To be included by kernels*.cpp only, as
// simd.hpp.
#pragma once

#include "device/cpu/simd.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace llampi::device::LLAMPI_SIMD {
namespace {

typedef std::uint64_t Words __attribute__((vector_size(kVectorBytes)));
constexpr Index kBlocks = kVectorBytes / 8;  ///< of Philox at once

/// The lower halves times `factor`, in full.
inline Words multiply_lower(Words v, std::uint32_t factor) {
#if defined(LLAMPI_SIMD_512)
  return reinterpret_cast<Words>(_mm512_mul_epu32(reinterpret_cast<__m512i>(v), _mm512_set1_epi64(factor)));
#elif defined(LLAMPI_SIMD_256)
  return reinterpret_cast<Words>(_mm256_mul_epu32(reinterpret_cast<__m256i>(v), _mm256_set1_epi64x(factor)));
#elif defined(__SSE2__)
  return reinterpret_cast<Words>(_mm_mul_epu32(reinterpret_cast<__m128i>(v), _mm_set1_epi64x(factor)));
#else
  return (v & 0xFFFFFFFF) * std::uint64_t{factor};
#endif
}

/// Of a lane the lower half counts, and the upper one may hold anything.
struct PhiloxCounters {
  Words c0, c1, c2, c3;
};

/// The blocks: in each lane the first two words of 32 bits, and the last two.
struct PhiloxBlocks {
  Words low, high;
};

inline PhiloxBlocks philox(PhiloxCounters counters, std::uint64_t key) {
  auto [c0, c1, c2, c3] = counters;
  auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const Words product0 = multiply_lower(c0, 0xD2511F53), product1 = multiply_lower(c2, 0xCD9E8D57);
    c0 = (product1 >> 32) ^ c1 ^ key0;
    c2 = (product0 >> 32) ^ c3 ^ key1;
    c1 = product1;
    c3 = product0;
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return {(c0 & 0xFFFFFFFF) | (c1 << 32), (c2 & 0xFFFFFFFF) | (c3 << 32)};
}

}  // namespace
}  // namespace llampi::device::LLAMPI_SIMD
