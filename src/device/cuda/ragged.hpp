// SPDX-License-Identifier: Apache-2.0
// What cuDNN's attention needs beside the operands: tables of the documents that are packed into one row, and
// log_sum_exp in its own order. Made on the device, since the documents' lengths are known there only.
#pragma once

#include <cstdint>

#include "device/cuda/common.hpp"

namespace llampi::device::cuda {

/// Null: not wanted.
struct RaggedTables {
  static constexpr int kOffsets = 4;
  std::int32_t* lengths = nullptr;  ///< [batch], tokens; 0 behind the last segment
  /// [batch + 1] each: the element at which a segment begins in a tensor of rows of `widths` elements; behind
  /// the last segment that at which it ends.
  std::int64_t* offsets[kOffsets] = {};
  std::int64_t widths[kOffsets] = {};
};

/// @param segment_offsets [segments + 1], token at which a segment begins
/// @param batch at least `segments`
void fill_ragged_tables(const std::int32_t* segment_offsets, std::int64_t segments, std::int64_t batch,
                        const RaggedTables& tables, cudaStream_t stream);

/// One float32 of each head and token: that of head h and token t of sequence s is at
/// data[h head + s sequence + t token].
struct RowStatistics {
  float* data = nullptr;
  std::int64_t head = 0, sequence = 0, token = 0;
};

/// to = from, for sequences of `length` tokens that make up `tokens`; in different memory.
void copy_statistics(RowStatistics from, RowStatistics to, std::int64_t heads, std::int64_t tokens,
                     std::int64_t length, cudaStream_t stream);

}  // namespace llampi::device::cuda
