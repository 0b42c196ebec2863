// SPDX-License-Identifier: Apache-2.0
// Which dtypes can be reduced to which.
#pragma once

#include "llampi/core/elements.hpp"

namespace llampi::comm {

/// @throws Error unless elements of `dtype` can be reduced to `result`: the same, or float32 for those of 16 bits; those of
/// 8 bits, which have scales, cannot
inline void require_reducible(DType dtype, DType result) {
  if ((dtype == result && !is_float8(dtype)) || (is_half(dtype) && result == DType::float32)) return;
  throw Error(fmt::format("internal error: reduction of {} to {}", to_string(dtype), to_string(result)));
}

}  // namespace llampi::comm
