// SPDX-License-Identifier: Apache-2.0
// How products in 8 bits are formed.
#pragma once

#include <array>
#include <cstdint>

#include "llampi/core/tensor.hpp"
#include "llampi/core/words.hpp"

namespace llampi::model {

/// Divides the sides of all products: sizes of the model, and the tokens of a micro-batch, over which gradients of weights
/// are summed. Tensor cores take so many numbers at a time.
inline constexpr std::int64_t kFp8Multiple = 16;

/// Which numbers share a scale: device::Fp8Scaling has the layouts.
enum class Fp8Scales : std::uint8_t {
  tensor,  ///< all of an operand
  block,   ///< of weights blocks of 128 x 128; of the others tiles of 1 x 128 along what a product sums over
};
constexpr auto word_table(Fp8Scales) {
  return std::to_array<Word<Fp8Scales>>({{Fp8Scales::tensor, "tensor"}, {Fp8Scales::block, "block"}});
}

/// Products in 8 bits: those of the blocks, of weights and activations in float8_e4m3fn, and of gradients in
/// `gradient`. What they are formed from is rounded to bfloat16 first. A scale is the largest power of two with
/// which the largest magnitude that it is for fits (op::Fp8Cast, op::Fp8BlockCast, op::Fp8TileCast).
struct Fp8Recipe {
  DType gradient = DType::float8_e5m2;  ///< or float8_e4m3fn
  Fp8Scales scales = Fp8Scales::tensor;
};

}  // namespace llampi::model
