// SPDX-License-Identifier: Apache-2.0
// How products in 8 bits are formed.
#pragma once

#include <cstdint>

#include "llampi/core/tensor.hpp"

namespace llampi::model {

/// Divides the sides of all products: sizes of the model, and the tokens of a micro-batch, over which gradients of weights
/// are summed. Tensor cores take so many numbers at a time.
inline constexpr std::int64_t kFp8Multiple = 16;

/// Products in 8 bits: those of the blocks, of weights and activations in float8_e4m3fn, and of gradients in
/// `gradient`. What they are formed from is rounded to bfloat16 first, with one scale for each tensor
/// (op::Fp8Cast): the largest power of two with which its largest magnitude fits.
struct Fp8Recipe {
  DType gradient = DType::float8_e5m2;  ///< or float8_e4m3fn
};

}  // namespace llampi::model
