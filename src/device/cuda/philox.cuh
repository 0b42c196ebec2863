// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10, see core/philox.hpp.
#pragma once

#include <cstdint>

#include "device/cuda/hardware.cuh"

namespace llampi::device::cuda {

struct PhiloxBlock {
  std::uint32_t words[4];
};

/// blocks[i] of the counter whose lower and upper half are `lower` and upper[i]; of each, and of the key, the lower word
/// comes first. Together they cost less than one by one: the keys of the rounds are the same.
template <int N>
__device__ inline void philox(std::uint64_t lower, const std::uint64_t (&upper)[N], std::uint64_t key,
                              PhiloxBlock (&blocks)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    blocks[i] = {{static_cast<std::uint32_t>(lower), static_cast<std::uint32_t>(lower >> 32),
                  static_cast<std::uint32_t>(upper[i]), static_cast<std::uint32_t>(upper[i] >> 32)}};
  }
  std::uint32_t key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      auto& c = blocks[i].words;
      const std::uint64_t product0 = std::uint64_t{0xD2511F53} * c[0],
                          product1 = std::uint64_t{0xCD9E8D57} * c[2];
      c[0] = static_cast<std::uint32_t>(product1 >> 32) ^ c[1] ^ key0;
      c[2] = static_cast<std::uint32_t>(product0 >> 32) ^ c[3] ^ key1;
      c[1] = static_cast<std::uint32_t>(product1);
      c[3] = static_cast<std::uint32_t>(product0);
    }
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}
__device__ inline PhiloxBlock philox(std::uint64_t lower, std::uint64_t upper, std::uint64_t key) {
  PhiloxBlock blocks[1];
  philox<1>(lower, {upper}, key, blocks);
  return blocks[0];
}

}  // namespace llampi::device::cuda
