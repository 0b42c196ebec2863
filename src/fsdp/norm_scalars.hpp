// SPDX-License-Identifier: Apache-2.0
// What is in the buffer of Purpose::norm_scalars.
#pragma once

#include "llampi/core/tensor.hpp"
#include "llampi/device/sum_of_squares.hpp"

namespace llampi::fsdp {

struct NormScalars {
  Tensor sum;  ///< int64 [1, device::kSumOfSquaresNumbers]: of the squares of all gradients
  /// int32 [1, units]: largest magnitude, as bits of a float32, of this rank's shard of each unit that is trained; 0 of others.
  /// They tell where a gradient stopped being finite, when its memory has long other uses.
  Tensor unit_maxima;
};

inline constexpr std::int64_t kNormScalars = sizeof(device::SumOfSquares) / sizeof(std::int32_t);
/// @param buffer int32 [1, kNormScalars + units]
inline NormScalars norm_scalars(Tensor buffer) {
  return {.sum = {buffer.data, DType::int64, 1, device::kSumOfSquaresNumbers},
          .unit_maxima = buffer.slice(kNormScalars, buffer.cols)};
}

}  // namespace llampi::fsdp
