// SPDX-License-Identifier: Apache-2.0
// How reductions are divided over the ranks, and between GPUs into pieces.
#pragma once

#include <cstdint>

#include "llampi/comm/reduction.hpp"
#include "llampi/core/tensor.hpp"

namespace llampi::comm {

/// The head, ranks * slice elements, is reduced like a reduce-scatter followed by an all-gather: each rank sums one slice. The tail is
/// sent to all ranks, and each sums all of it. It is what does not divide into slices, or all of a small array.
struct AllReduceSplit {
  std::int64_t slice = 0;  ///< elements per rank
  std::int64_t head = 0;   ///< ranks * slice
  std::int64_t tail = 0;   ///< elements after the head
};

/// @param multiple of which slices are to be
AllReduceSplit split_all_reduce(std::int64_t elements, int ranks, DType dtype, std::int64_t multiple = 1);

/// Elements in 16 bytes, which the GPU reads at once.
inline std::int64_t aligned_elements(DType dtype) { return 16 / size_of(dtype); }

/// Whether Reduction::tree sums it; what it does not is left to NCCL.
bool is_summed_in_tree(Reduction reduction, DType dtype);

/// A reduce-scatter between GPUs goes in pieces of each rank's shard.
struct ReduceScatterPieces {
  std::int64_t elements = 0;  ///< of a piece; the last may be smaller
  std::int64_t stride = 0;    ///< from one rank's piece to the next in the workspace, in elements
};
ReduceScatterPieces split_reduce_scatter(std::int64_t shard_elements, int ranks, DType dtype,
                                         std::int64_t exchange_bytes);

/// An all-reduce between GPUs is several, one after another, of so many elements or fewer.
std::int64_t all_reduce_piece(std::int64_t elements, int ranks, DType dtype, std::int64_t exchange_bytes);

}  // namespace llampi::comm
