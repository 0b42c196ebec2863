// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/int8_blocks.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace llampi {
namespace {

constexpr float kMost = 127;
/// Its last place is 1: a number up to 2^22 that is added to it is rounded to an integer, ties to even, which its bits then
/// end with. Unlike a call of std::rint(), a loop over this vectorises on every processor.
constexpr float kRounder = 0x1.8p23F;

float scale_of(const float* values) {
  // Bits of magnitudes order as the numbers do, and those of infinity and NaN come last.
  std::int32_t most = 0;
  for (std::int64_t i = 0; i < kInt8BlockElements; ++i)
    most = std::max(most, std::bit_cast<std::int32_t>(values[i]) & 0x7FFFFFFF);
  const auto magnitude = std::bit_cast<float>(most);
  if (!std::isfinite(magnitude)) return std::numeric_limits<float>::quiet_NaN();
  const float scale = magnitude / kMost;
  return scale < std::numeric_limits<float>::min() ? 0.0F : scale;
}

}  // namespace

void to_int8_blocks(const float* values, std::int64_t elements, Int8Block* blocks) {
  for (std::int64_t b = 0; b < elements / kInt8BlockElements; ++b) {
    const float* const from = values + b * kInt8BlockElements;
    Int8Block& block = blocks[b];
    block.scale = scale_of(from);
    const bool has_values = block.scale > 0;
    for (std::int64_t i = 0; i < kInt8BlockElements; ++i) {
      const float quotient = has_values ? from[i] / block.scale : 0.0F;
      block.values[i] = static_cast<std::int8_t>(std::bit_cast<std::int32_t>(quotient + kRounder));
    }
  }
}

void from_int8_blocks(const Int8Block* blocks, std::int64_t elements, float* values) {
  for (std::int64_t b = 0; b < elements / kInt8BlockElements; ++b) {
    for (std::int64_t i = 0; i < kInt8BlockElements; ++i)
      values[b * kInt8BlockElements + i] = static_cast<float>(blocks[b].values[i]) * blocks[b].scale;
  }
}

}  // namespace llampi
