// SPDX-License-Identifier: Apache-2.0
// What a part of an attention by cuDNN has in the operation's workspace, beside what the graph takes: tables of documents, copies
// of keys and values, statistics in the order of the graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/cuda/common.hpp"
#include "device/cuda/cudnn_division.hpp"
#include "device/cuda/ragged.hpp"

namespace llampi::device::cuda {

enum RaggedTable { kQueryTable, kKeyTable, kOutTable, kStatisticsTable };
static_assert(kStatisticsTable < RaggedTables::kOffsets);

struct CudnnScratch {
  std::vector<RaggedTables> tables;  ///< for each of the launches
  float* statistics = nullptr;       ///< of a piece of the heads; null: log_sum_exp itself
  std::byte *key = nullptr, *value = nullptr, *key_gradient = nullptr, *value_gradient = nullptr;
  std::byte* query_gradient = nullptr;  ///< rows as those of dqkv; null: there
  std::byte* graph = nullptr;
  std::int64_t bytes = 0;  ///< of all
};

/// @param tokens of the whole operation @param graph_bytes that the graphs of the part take
/// @param base null: only the size is asked for
CudnnScratch carve_scratch(const CudnnPart& part, std::int64_t tokens, std::int64_t graph_bytes, void* base);

/// Fills the tables of a part of packed documents; does nothing for others.
void fill_tables(const Documents& documents, const CudnnPart& part, const CudnnScratch& scratch,
                 cudaStream_t stream);

}  // namespace llampi::device::cuda
