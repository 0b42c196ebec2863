// SPDX-License-Identifier: Apache-2.0
// Which dtypes can be reduced to which.
#pragma once

#include "llampi/core/float8.hpp"
#include "llampi/core/tensor.hpp"

namespace llampi::comm {

/// bfloat16 and float16.
inline bool is_narrow(DType dtype) { return dtype == DType::bfloat16 || dtype == DType::float16; }

/// @throws Error unless elements of `dtype` can be reduced to `result`: the same, or float32 for narrow ones; those of
/// 8 bits, which have scales, cannot
inline void require_reducible(DType dtype, DType result) {
  if ((dtype == result && !is_float8(dtype)) || (is_narrow(dtype) && result == DType::float32)) return;
  throw Error(fmt::format("internal error: reduction of {} to {}", to_string(dtype), to_string(result)));
}

}  // namespace llampi::comm
