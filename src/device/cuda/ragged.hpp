// SPDX-License-Identifier: Apache-2.0
// What cuDNN's attention needs beside the operands: tables of the documents that are packed into one row, and
// log_sum_exp in its own order. Made on the device, since the documents' lengths are known there only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cuda/common.hpp"
#include "llampi/device/length_classes.hpp"

namespace llampi::device::cuda {

/// Tables of the documents whose lengths are of one class, in the order in which they are packed, `batch` for
/// each of so many launches. Those of a launch begin at 16 bytes.
struct RaggedTables {
  static constexpr int kOffsets = 4;
  std::int64_t above = 0, longest = 0;   ///< documents of more tokens than `above`, and at most `longest`
  std::int64_t launches = 0, batch = 0;  ///< their product is at least the number of such documents
  /// [launches, row()], of which `batch` count: tokens; 0 behind the last document.
  std::int32_t* lengths = nullptr;
  /// [launches, row()] each, of which batch + 1 count: the element at which a document begins in a tensor of
  /// rows of so many elements as RaggedWidths says; behind the last document that at which the tensor ends.
  std::int64_t* offsets[kOffsets] = {};

  std::int64_t row() const { return (batch + 4) / 4 * 4; }
};

struct RaggedWidths {
  std::int64_t of[RaggedTables::kOffsets] = {};
};

/// Fills the tables of all classes that have launches.
/// @param cu_seqlens [documents + 1], token at which a document begins; empty documents are in no table
/// @param tables of at most LengthClasses::kCount classes
void fill_ragged_tables(const std::int32_t* cu_seqlens, std::int64_t documents, std::int64_t tokens,
                        std::span<const RaggedTables> tables, const RaggedWidths& widths,
                        cudaStream_t stream);

/// Rows of documents from tensors to columns of others, in one launch. Nothing else is written there.
/// All addresses and numbers of bytes are multiples of 16.
struct DocumentRows {
  const std::int32_t* lengths = nullptr;  ///< of `batch` documents, as in RaggedTables
  const std::int64_t* begins = nullptr;   ///< likewise; a token is `width` elements
  std::int64_t batch = 0, width = 1;
  struct Part {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::int64_t from_row = 0, to_row = 0;  ///< bytes from a token to the next one
    std::int64_t bytes = 0;                 ///< of a row that are copied
  };
  Part parts[3] = {};  ///< as those of queries, keys and values
};
void copy_documents(const DocumentRows& rows, cudaStream_t stream);

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
