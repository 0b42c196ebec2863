// SPDX-License-Identifier: Apache-2.0
// Spreads similar numbers over all 64 bits, for checks in whose sums they must not cancel.
#pragma once

#include <cstdint>

#include "llampi/core/host_device.hpp"

namespace llampi {

/// The finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): 0 stays 0, and different numbers stay different.
LLAMPI_HOST_DEVICE constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

}  // namespace llampi
