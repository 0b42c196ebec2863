// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the reductions. MPI's own leaves the order of additions open, and with it the last bits.
#pragma once

#include <cstdint>

#include "comm/operands.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::comm {

/// What ranks have of a sum: of rank r `elements` from `first` + r * `stride` on.
struct RankRows {
  const void* first = nullptr;
  DType dtype = DType::float32;
  std::int64_t ranks = 1, elements = 0, stride = 0;

  RankRows(const void* begin, DType type, std::int64_t rank_count, std::int64_t element_count,
           std::int64_t from_rank_to_rank)
      : first(begin), dtype(type), ranks(rank_count), elements(element_count), stride(from_rank_to_rank) {}
  /// Row r of [ranks, elements] is rank r's.
  RankRows(const Tensor& rows) : RankRows(rows.data, rows.dtype, rows.rows, rows.cols, rows.cols) {}
};

/// out[i] (+)= the c_r[i] combined in the order of tree_left(), where c_r is what rank r has.
/// A maximum is NaN if any contribution is. bfloat16 and float16 are widened and combined in float32, the
/// result (with what it is added to) is rounded once if `out` [1, elements] is as narrow. `out` overlaps no
/// contribution, or with one rank may be the contribution. Dtypes as require_reducible() wants them.
void combine_in_tree_order(const RankRows& contributions, ReduceOp op, Accumulate accumulate, Tensor out);

/// The float32 sums of bfloat16 or float16 contributions, for memory with room for 16 bits
/// an element: the upper halves of their bits to `upper`, the lower halves to `lower`. Either may be one of
/// the contributions.
void sum_to_halves(const RankRows& contributions, std::uint16_t* upper, std::uint16_t* lower);
/// out += the float32 numbers with these halves.   out [1, elements], float32, bfloat16 or float16.
void add_halves(const std::uint16_t* upper, const std::uint16_t* lower, Tensor out);

}  // namespace llampi::comm
