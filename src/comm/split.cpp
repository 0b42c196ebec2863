// SPDX-License-Identifier: Apache-2.0
#include "comm/split.hpp"

#include <algorithm>

#include "comm/operands.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/workspace.hpp"
#include "llampi/core/integers.hpp"

namespace llampi::comm {
namespace {

// Below this an all-reduce costs its number of messages, not its bytes: one exchange beats two.
constexpr std::int64_t kSmallBytes = 16 * 1024;
// Elements: however many ranks there are, pieces are not smaller.
constexpr std::int64_t kSmallestPiece = 64;

/// Elements of which a rank's part takes `bytes` each.
std::int64_t elements_within(std::int64_t exchange_bytes, std::int64_t bytes) {
  return std::max<std::int64_t>(exchange_bytes / bytes / kSmallestPiece, 1) * kSmallestPiece;
}

// Larger units have more room, so that they need no more pieces: each has messages for all parts of a rank, some 4000 on 2048 GPUs.
constexpr std::int64_t kMostPieces = 16;

/// Elements of a rank's part, of which there are so many, in one piece.
std::int64_t piece_of(std::int64_t elements, std::int64_t exchange_bytes, std::int64_t bytes) {
  return std::max(elements_within(exchange_bytes, bytes),
                  round_up(ceil_div(elements, kMostPieces), kSmallestPiece));
}

/// Workspace for each element of a slice: the contributions of the other ranks and, for bfloat16 and float16, the float32 sums of all
/// slices, which are gathered before they are added and rounded.
std::int64_t bytes_of_slice_element(int ranks, DType dtype) {
  return (ranks - 1) * size_of(dtype) + (is_half(dtype) ? ranks * size_of(DType::float32) : 0);
}

/// Of an all-reduce in one piece. The tail is exchanged when the head is done.
std::int64_t bytes_of_piece(std::int64_t elements, int ranks, DType dtype) {
  const AllReduceSplit split = split_all_reduce(elements, ranks, dtype, aligned_elements(dtype));
  return std::max(split.slice * bytes_of_slice_element(ranks, dtype), split.tail * ranks * size_of(dtype));
}

/// Whether the reduction is one piece in any case.
bool is_whole(Backend backend, std::int64_t elements, int ranks, DType dtype, Reduction reduction) {
  return elements < ranks || ranks == 1 || backend == Backend::mpi || !is_summed_in_tree(reduction, dtype);
}

}  // namespace

AllReduceSplit split_all_reduce(std::int64_t elements, int ranks, DType dtype, std::int64_t multiple) {
  const bool small = elements * size_of(dtype) * ranks <= kSmallBytes;
  const std::int64_t slice = small ? 0 : elements / ranks / multiple * multiple;
  return {slice, slice * ranks, elements - slice * ranks};
}

bool is_summed_in_tree(Reduction reduction, DType dtype) {
  return reduction == Reduction::tree && (dtype == DType::float32 || is_half(dtype));
}

ReduceScatterPieces split_reduce_scatter(std::int64_t shard_elements, int ranks, DType dtype,
                                         std::int64_t exchange_bytes) {
  const std::int64_t most = piece_of(shard_elements, exchange_bytes, (ranks - 1) * size_of(dtype));
  const std::int64_t elements = std::min(shard_elements, most);
  return {elements, round_up(elements, aligned_elements(dtype))};
}

std::int64_t all_reduce_piece(std::int64_t elements, int ranks, DType dtype, std::int64_t exchange_bytes) {
  return std::min(elements, ranks * piece_of(ceil_div(elements, ranks), exchange_bytes,
                                             bytes_of_slice_element(ranks, dtype)));
}

std::int64_t reduce_scatter_workspace(Backend backend, std::int64_t whole_elements, int ranks, DType dtype,
                                      Reduction reduction, std::int64_t exchange_bytes) {
  if (ranks == 1) return 0;
  if (backend == Backend::mpi) return whole_elements * size_of(dtype);
  if (!is_summed_in_tree(reduction, dtype)) return 0;
  return split_reduce_scatter(whole_elements / ranks, ranks, dtype, exchange_bytes).stride * (ranks - 1) *
         size_of(dtype);
}

std::int64_t all_reduce_workspace(Backend backend, std::int64_t elements, int ranks, DType dtype,
                                  Reduction reduction, std::int64_t exchange_bytes) {
  if (ranks == 1 || elements == 0) return 0;
  if (backend == Backend::mpi) {
    const AllReduceSplit split = split_all_reduce(elements, ranks, dtype);
    return (split.head + split.tail * ranks) * size_of(dtype);
  }
  if (!is_summed_in_tree(reduction, dtype)) return 0;
  const std::int64_t piece = all_reduce_piece(elements, ranks, dtype, exchange_bytes);
  return std::max(bytes_of_piece(piece, ranks, dtype), bytes_of_piece(elements % piece, ranks, dtype));
}

std::int64_t reduce_scatter_pieces(Backend backend, std::int64_t whole_elements, int ranks, DType dtype,
                                   Reduction reduction) {
  if (is_whole(backend, whole_elements, ranks, dtype, reduction)) return 1;
  const std::int64_t shard = whole_elements / ranks;
  return ceil_div(shard, split_reduce_scatter(shard, ranks, dtype, kExchangeBytes).elements);
}

std::int64_t all_reduce_pieces(Backend backend, std::int64_t elements, int ranks, DType dtype,
                               Reduction reduction) {
  if (is_whole(backend, elements, ranks, dtype, reduction)) return 1;
  return ceil_div(elements, all_reduce_piece(elements, ranks, dtype, kExchangeBytes));
}

}  // namespace llampi::comm
