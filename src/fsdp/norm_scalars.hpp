// SPDX-License-Identifier: Apache-2.0
// What is in the buffer of Purpose::norm_scalars.
#pragma once

#include "llampi/core/tensor.hpp"

namespace llampi::fsdp {

struct NormScalars {
  Tensor limbs;    ///< int64 [1, 2]: sum of squares
  Tensor maximum;  ///< int32 [1, 1]: largest magnitude, as bits of a float32
  /// int32 [1, units]: likewise, of this rank's shard of each unit that is trained; 0 of others. They tell
  /// where a gradient stopped being finite, when its memory has long other uses.
  Tensor unit_maxima;
};

/// @param buffer int32 [1, kNormScalars + units]
inline constexpr std::int64_t kNormScalars = 6;  // one is unused
inline NormScalars norm_scalars(Tensor buffer) {
  auto* const values = buffer.as<std::int32_t>();
  return {.limbs = {values, DType::int64, 1, 2},
          .maximum = {values + 4, DType::int32, 1, 1},
          .unit_maxima = buffer.slice(kNormScalars, buffer.cols)};
}

}  // namespace llampi::fsdp
