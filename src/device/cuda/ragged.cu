// SPDX-License-Identifier: Apache-2.0
// Tables and statistics for cuDNN's attention.
#include "device/cuda/ragged.hpp"

#include <algorithm>

#include "device/cuda/kernels.cuh"

#include "llampi/core/integers.hpp"

namespace llampi::device::cuda {
namespace {

constexpr std::int64_t kMostBlocks = 1024;

struct TablesOfClasses {
  RaggedTables of[LengthClasses::kCount];
};

/// How many of the block's threads before this one have set `mine`, and how many have in all.
struct Rank {
  int before = 0, all = 0;
};
__device__ Rank rank_in_block(bool mine) {
  __shared__ int counts[2][kElementThreads];
  int from = 0;
  counts[from][threadIdx.x] = mine ? 1 : 0;
  for (int distance = 1; distance < kElementThreads; distance *= 2) {
    __syncthreads();
    const int t = static_cast<int>(threadIdx.x);
    counts[1 - from][t] = counts[from][t] + (t >= distance ? counts[from][t - distance] : 0);
    from = 1 - from;
  }
  __syncthreads();
  const Rank rank{counts[from][threadIdx.x] - (mine ? 1 : 0), counts[from][kElementThreads - 1]};
  __syncthreads();  // before the next call writes
  return rank;
}

/// A block for each class.
__global__ void __launch_bounds__(kElementThreads)
    ragged_tables(const std::int32_t* cu_seqlens, std::int64_t documents, std::int64_t tokens,
                  TablesOfClasses classes, RaggedWidths widths) {
  const RaggedTables& tables = classes.of[blockIdx.x];
  const std::int64_t row = (tables.batch + 4) / 4 * 4;  // RaggedTables::row()
  const std::int64_t entries = tables.launches * tables.batch;
  const auto put_offsets = [&](std::int64_t at, std::int64_t begin) {
#pragma unroll
    for (int k = 0; k < RaggedTables::kOffsets; ++k) tables.offsets[k][at] = begin * widths.of[k];
  };
  // The end of a launch's last document is where the next one's first begins, or later.
  const auto put = [&](std::int64_t entry, std::int64_t begin, std::int64_t length) {
    const std::int64_t piece = entry / tables.batch, i = entry % tables.batch;
    if (i == 0 && piece > 0) put_offsets((piece - 1) * row + tables.batch, begin);
    if (entry >= entries) return;
    tables.lengths[piece * row + i] = static_cast<std::int32_t>(length);
    put_offsets(piece * row + i, begin);
  };
  std::int64_t filled = 0;
  for (std::int64_t first = 0; first < documents; first += kElementThreads) {
    const std::int64_t i = first + threadIdx.x;
    const std::int64_t begin = i < documents ? cu_seqlens[i] : 0;
    const std::int64_t length = i < documents ? cu_seqlens[i + 1] - begin : 0;
    const bool mine = length > tables.above && length <= tables.longest;
    const Rank rank = rank_in_block(mine);
    if (mine && filled + rank.before < entries) put(filled + rank.before, begin, length);
    filled += rank.all;
  }
  for (std::int64_t entry = filled + threadIdx.x; entry <= entries; entry += kElementThreads)
    put(entry, tokens, 0);
}

/// A column of blocks for each document and part.
__global__ void __launch_bounds__(kElementThreads) document_rows(DocumentRows rows) {
  const DocumentRows::Part& part = rows.parts[blockIdx.z];
  const std::int64_t begin = rows.begins[blockIdx.x] / rows.width, packs = part.bytes / 16;
  const std::int64_t count = rows.lengths[blockIdx.x] * packs,
                     stride = std::int64_t{gridDim.y} * kElementThreads;
  for (std::int64_t i = std::int64_t{blockIdx.y} * kElementThreads + threadIdx.x; i < count; i += stride) {
    const std::int64_t token = begin + i / packs, at = i % packs * 16;
    *reinterpret_cast<uint4*>(part.to + token * part.to_row + at) =
        *reinterpret_cast<const uint4*>(part.from + token * part.from_row + at);
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

void fill_ragged_tables(const std::int32_t* cu_seqlens, std::int64_t documents, std::int64_t tokens,
                        std::span<const RaggedTables> tables, const RaggedWidths& widths,
                        cudaStream_t stream) {
  TablesOfClasses classes;
  unsigned count = 0;
  for (const RaggedTables& of_class : tables) {
    if (of_class.launches > 0) classes.of[count++] = of_class;
  }
  if (count == 0) return;
  launch(ragged_tables, dim3(count), dim3(kElementThreads), 0, stream, cu_seqlens, documents, tokens, classes,
         widths);
}

void copy_documents(const DocumentRows& rows, cudaStream_t stream) {
  constexpr std::int64_t kBlocks = 1024;  // one long document gets them all
  for (const auto& part : rows.parts)
    require(part.bytes % 16 == 0 && part.from_row % 16 == 0 && part.to_row % 16 == 0, "rows of whole packs");
  const std::int64_t blocks_of_document = std::max<std::int64_t>(1, kBlocks / rows.batch);
  launch(document_rows,
         dim3(static_cast<unsigned>(rows.batch), static_cast<unsigned>(blocks_of_document),
              static_cast<unsigned>(std::size(rows.parts))),
         dim3(kElementThreads), 0, stream, rows);
}

void copy_statistics(RowStatistics from, RowStatistics to, std::int64_t heads, std::int64_t tokens,
                     std::int64_t length, cudaStream_t stream) {
  if (heads * tokens == 0) return;
  const std::int64_t blocks = std::min(ceil_div(heads * tokens, kElementThreads), kMostBlocks);
  launch(row_statistics, dim3(static_cast<unsigned>(blocks)), dim3(kElementThreads), 0, stream, from, to,
         heads, tokens, length);
}

}  // namespace llampi::device::cuda
