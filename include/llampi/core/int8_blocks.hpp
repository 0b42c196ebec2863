// SPDX-License-Identifier: Apache-2.0
// Numbers in 8 bits, with a scale for each block of 128: DType::int8_blocks.
//
// A block with the largest magnitude m has the scale s = m / 127, in float32, and an element x becomes the integer nearest to
// x / s, ties to even, so that it changes by at most s / 2 (and what float32 rounds of the quotient). Integers are in
// [-127, 127]: zero is exact, and signs are symmetric. Where s would be subnormal, the block becomes zeros; one that
// holds a number that is not finite becomes NaN. The scale is in float32: it is as good as exact, and a block has a multiple of
// four bytes; in bfloat16 it would save 1.5 % of the bytes.
#pragma once

#include <cstdint>

#include "llampi/core/tensor.hpp"

namespace llampi {

struct Int8Block {
  float scale;
  std::int8_t values[kInt8BlockElements];
};
static_assert(sizeof(Int8Block) == kInt8BlockBytes);

/// @param elements a multiple of kInt8BlockElements
void to_int8_blocks(const float* values, std::int64_t elements, Int8Block* blocks);
/// Each integer times its scale, in float32.
void from_int8_blocks(const Int8Block* blocks, std::int64_t elements, float* values);

}  // namespace llampi
