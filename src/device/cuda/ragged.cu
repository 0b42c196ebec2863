// SPDX-License-Identifier: Apache-2.0
// Tables and statistics for cuDNN's attention.
#include "device/cuda/ragged.hpp"

#include <algorithm>

#include "device/cuda/kernels.cuh"

namespace llampi::device::cuda {
namespace {

constexpr std::int64_t kMostBlocks = 1024;

__global__ void __launch_bounds__(kElementThreads)
    ragged_tables(const std::int32_t* segment_offsets, std::int64_t segments, std::int64_t batch,
                  RaggedTables tables) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kElementThreads + threadIdx.x;
  if (i > batch) return;
  const std::int64_t begin = segment_offsets[i < segments ? i : segments];
  const std::int64_t end = segment_offsets[i < segments ? i + 1 : segments];
  if (tables.lengths != nullptr && i < batch) tables.lengths[i] = static_cast<std::int32_t>(end - begin);
#pragma unroll
  for (int k = 0; k < RaggedTables::kOffsets; ++k) {
    if (tables.offsets[k] != nullptr) tables.offsets[k][i] = begin * tables.widths[k];
  }
}

__device__ std::int64_t place(const RowStatistics& of, std::int64_t head, std::int64_t sequence,
                              std::int64_t token) {
  return head * of.head + sequence * of.sequence + token * of.token;
}

__global__ void __launch_bounds__(kElementThreads)
    row_statistics(RowStatistics from, RowStatistics to, std::int64_t heads, std::int64_t tokens,
                   std::int64_t length) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kElementThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kElementThreads + threadIdx.x; i < heads * tokens;
       i += stride) {
    const std::int64_t head = i / tokens, token = i % tokens;
    const std::int64_t sequence = token / length, t = token % length;
    to.data[place(to, head, sequence, t)] = from.data[place(from, head, sequence, t)];
  }
}

}  // namespace

void fill_ragged_tables(const std::int32_t* segment_offsets, std::int64_t segments, std::int64_t batch,
                        const RaggedTables& tables, cudaStream_t stream) {
  require(segments <= batch, "more segments than entries of their tables");
  launch(ragged_tables, dim3(static_cast<unsigned>(divide_up(batch + 1, kElementThreads))),
         dim3(kElementThreads), 0, stream, segment_offsets, segments, batch, tables);
}

void copy_statistics(RowStatistics from, RowStatistics to, std::int64_t heads, std::int64_t tokens,
                     std::int64_t length, cudaStream_t stream) {
  if (heads * tokens == 0) return;
  const std::int64_t blocks = std::min(divide_up(heads * tokens, kElementThreads), kMostBlocks);
  launch(row_statistics, dim3(static_cast<unsigned>(blocks)), dim3(kElementThreads), 0, stream, from, to,
         heads, tokens, length);
}

}  // namespace llampi::device::cuda
