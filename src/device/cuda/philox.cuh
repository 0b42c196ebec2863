// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10, see core/philox.hpp.
#pragma once

#include <cstdint>

#include "device/cuda/hardware.cuh"

namespace llampi::device::cuda {

struct PhiloxBlock {
  std::uint32_t words[4];
};

/// Of the counter whose lower and upper half these are; of each, and of the key, the lower word comes first.
__device__ inline PhiloxBlock philox(std::uint64_t lower, std::uint64_t upper, std::uint64_t key) {
  std::uint32_t c0 = static_cast<std::uint32_t>(lower), c1 = static_cast<std::uint32_t>(lower >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(upper), c3 = static_cast<std::uint32_t>(upper >> 32);
  std::uint32_t key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * c0, product1 = std::uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<std::uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c2 = static_cast<std::uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c1 = static_cast<std::uint32_t>(product1);
    c3 = static_cast<std::uint32_t>(product0);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace llampi::device::cuda
