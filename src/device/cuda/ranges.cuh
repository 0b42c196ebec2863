// SPDX-License-Identifier: Apache-2.0
// The ranges of a shard as kernels walk them: each block has a piece of one range. Ranges are passed by
// value, some at a time, so that a launch needs no memory of the device and can be captured.
#pragma once

#include <cstdint>
#include <span>

#include "device/cuda/vectors.cuh"
#include "llampi/core/integers.hpp"
#include "llampi/device/operations.hpp"

namespace llampi::device::cuda {

inline constexpr int kRangeThreads = 256;           ///< of a block
inline constexpr std::int64_t kRangePiece = 16384;  ///< elements of a block
inline constexpr std::int64_t kRangeAlignment = 8;  ///< pieces begin at multiples, but for the first
inline constexpr int kRangesAtOnce = 64;            ///< 3.3 KiB of a launch's arguments

struct RangeGroup {
  UpdateRange ranges[kRangesAtOnce];
  /// Range i has the blocks [first_block[i], first_block[i + 1]).
  std::int32_t first_block[kRangesAtOnce + 1];
  std::int32_t count;
};

/// Elements [begin, end) of a tensor.
struct Piece {
  int range;  ///< of the group
  std::int64_t begin, end;
};

__device__ inline Piece piece_of_block(const RangeGroup& group) {
  const auto block = static_cast<std::int32_t>(blockIdx.x);
  int i = 0;
  while (i + 1 < group.count && block >= group.first_block[i + 1]) ++i;
  const std::int64_t begin = group.ranges[i].begin, end = group.ranges[i].end;
  const std::int64_t start =
      begin / kRangeAlignment * kRangeAlignment + (block - group.first_block[i]) * kRangePiece;
  return {i, start < begin ? begin : start, start + kRangePiece < end ? start + kRangePiece : end};
}

/// Elements from a vector of a thread to its next.
template <int N>
inline constexpr std::int64_t kStride = std::int64_t{kRangeThreads} * N;

/// some(i, count) for `count` (1 or kAtOnce, a constant) vectors of N elements that the piece covers, at i,
/// i + kStride<N>, ...; single(i) for the elements that are left. The threads of the block share the piece.
template <int N, int kAtOnce, class Some, class Single>
__device__ inline void walk(const Piece& piece, const Some& some, const Single& single) {
  const std::int64_t body = (piece.begin + N - 1) / N * N, body_end = piece.end / N * N;
  std::int64_t i = body + std::int64_t{threadIdx.x} * N;
  if constexpr (kAtOnce > 1) {
    for (; i + (kAtOnce - 1) * kStride<N> < body_end; i += kAtOnce * kStride<N>)
      some(i, std::integral_constant<int, kAtOnce>{});
  }
  for (; i < body_end; i += kStride<N>) some(i, std::integral_constant<int, 1>{});
  const std::int64_t head_end = body < piece.end ? body : piece.end;
  const std::int64_t tail = body_end > head_end ? body_end : head_end;
  for (i = piece.begin + threadIdx.x; i < head_end; i += kRangeThreads) single(i);
  for (i = tail + threadIdx.x; i < piece.end; i += kRangeThreads) single(i);
}

/// start(group, blocks) for all ranges, some at a time. @throws Error if they leave [0, elements)
template <class Start>
void for_each_group(std::span<const UpdateRange> ranges, std::int64_t elements, const Start& start) {
  RangeGroup group{};
  for (const UpdateRange& range : ranges) {
    require(0 <= range.begin && range.begin <= range.end && range.end <= elements,
            "range outside of its tensor");
    if (range.begin == range.end) continue;
    const std::int64_t length = range.end - range.begin / kRangeAlignment * kRangeAlignment;
    const std::int64_t end = group.first_block[group.count] + ceil_div(length, kRangePiece);
    group.ranges[group.count++] = range;
    group.first_block[group.count] = static_cast<std::int32_t>(end);
    if (group.count < kRangesAtOnce) continue;
    start(group, dim3(static_cast<unsigned>(end)));
    group = RangeGroup{};
  }
  if (group.count > 0) start(group, dim3(static_cast<unsigned>(group.first_block[group.count])));
}

}  // namespace llampi::device::cuda
