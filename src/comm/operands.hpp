// SPDX-License-Identifier: Apache-2.0
// What collectives ask of their tensors, whatever carries them out.
#pragma once

#include "llampi/comm/forward.hpp"
#include "llampi/core/elements.hpp"

namespace llampi::comm {

/// @throws Error unless elements of `dtype` can be reduced to `result`: the same, or float32 for those of 16 bits; those of
/// 8 bits, which have scales, cannot
inline void require_reducible(DType dtype, DType result) {
  if ((dtype == result && !is_float8(dtype)) || (is_half(dtype) && result == DType::float32)) return;
  throw Error(fmt::format("internal error: reduction of {} to {}", to_string(dtype), to_string(result)));
}

// The operands of Group, in a group of `ranks`. @throws Error

inline void require_all_gather(Tensor shard, Tensor whole, int ranks) {
  require(shard.dtype == whole.dtype && shard.elements() * ranks == whole.elements(),
          "all_gather: whole is not `size` shards");
}

inline void require_reduce_scatter(Tensor whole, Tensor shard, int ranks) {
  require_reducible(whole.dtype, shard.dtype);
  require(shard.elements() * ranks == whole.elements(), "reduce_scatter: whole is not `size` shards");
}

inline void require_all_reduce(Tensor values, Tensor result, ReduceOp op, Accumulate accumulate) {
  const bool in_place = result.data == values.data && values.elements() > 0;
  require_reducible(values.dtype, result.dtype);
  require(result.elements() == values.elements(), "all_reduce: result is not like values");
  require(accumulate == Accumulate::no || op == ReduceOp::sum, "all_reduce: a maximum does not accumulate");
  require(!in_place || (accumulate == Accumulate::no && result.dtype == values.dtype),
          "all_reduce: values added to themselves, or widened in their place");
}

}  // namespace llampi::comm
