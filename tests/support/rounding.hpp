// SPDX-License-Identifier: Apache-2.0
// The definition of stochastic rounding (op::AdamW), one element at a time.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "device/cpu/kernels.hpp"
#include "llampi/core/half.hpp"
#include "llampi/core/philox.hpp"
#include "support/device_session.hpp"

namespace llampi::test {

/// `key.first_element` does not count: `element` is the logical one.
inline std::uint16_t round_bfloat16(float value, const device::RoundingKey& key, std::uint64_t element) {
  if (std::isnan(value)) return to_bfloat16(value);
  const auto word = [](std::uint64_t both, int i) { return static_cast<std::uint32_t>(both >> (32 * i)); };
  const auto block = philox({word(element / 8, 0), word(element / 8, 1), key.step, key.operand},
                            {word(key.parameter, 0), word(key.parameter, 1)});
  const std::uint64_t piece = element % 8;
  const std::uint32_t draw = (block[piece / 2] >> (16 * (piece % 2))) & 0xFFFF;
  return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + draw) >> 16);
}

}  // namespace llampi::test
