// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cudnn_scratch.hpp"

#include "llampi/core/integers.hpp"

namespace llampi::device::cuda {
namespace {

/// Places in the workspace, in multiples of 256 bytes.
class Carving {
 public:
  explicit Carving(void* base) : base_(reinterpret_cast<std::uintptr_t>(base)), next_(base_) {}
  template <class T>
  T* take(std::int64_t elements) {
    T* const place = reinterpret_cast<T*>(next_);
    next_ += static_cast<std::uintptr_t>(round_up(elements * static_cast<std::int64_t>(sizeof(T)), 256));
    return place;
  }
  std::int64_t bytes() const { return static_cast<std::int64_t>(next_ - base_); }

 private:
  std::uintptr_t base_, next_;
};

/// Statistics in log_sum_exp's own place: whole sequences are there as the graph has them. Operands begin at
/// 16 bytes, which those of a piece of the heads need not do there.
bool reads_log_sum_exp(const CudnnProblem& problem, std::int64_t tokens) {
  if (problem.ragged) return false;
  return problem.direction == Direction::forward ||
         (problem.batch == 1 && problem.longest == tokens && tokens % 4 == 0);
}

}  // namespace

CudnnScratch carve_scratch(const CudnnPart& part, std::int64_t tokens, std::int64_t graph_bytes, void* base) {
  Carving carving(base);
  CudnnScratch scratch;
  const CudnnProblem& problem = part.problem();
  for (const CudnnLaunches& launches : part.launches) {
    if (!problem.ragged) break;
    RaggedTables& tables = scratch.tables.emplace_back();
    tables.above = launches.above;
    tables.longest = launches.problem.longest;
    tables.launches = launches.pieces;
    tables.batch = launches.problem.batch;
    if (tables.launches == 0) continue;
    tables.lengths = carving.take<std::int32_t>(tables.launches * tables.row());
    for (auto& offsets : tables.offsets) offsets = carving.take<std::int64_t>(tables.launches * tables.row());
  }
  if (!reads_log_sum_exp(problem, tokens))
    scratch.statistics = carving.take<float>(problem.query_heads * problem.tokens);
  if (problem.packs_keys()) {
    const std::int64_t bytes = problem.tokens * problem.key_row() * size_of(problem.dtype);
    for (std::byte** place : {&scratch.key, &scratch.value, &scratch.key_gradient, &scratch.value_gradient})
      *place = carving.take<std::byte>(bytes);
  }
  if (part.apart)
    scratch.query_gradient =
        carving.take<std::byte>(problem.tokens * problem.qkv_row * size_of(problem.dtype));
  scratch.graph = carving.take<std::byte>(graph_bytes);
  scratch.bytes = carving.bytes();
  return scratch;
}

void fill_tables(const Documents& documents, const CudnnPart& part, const CudnnScratch& scratch,
                 cudaStream_t stream) {
  const CudnnProblem& problem = part.problem();
  if (!problem.ragged) return;
  const auto* const offsets =
      elements_of<std::int32_t>(documents.cu_seqlens, DType::int32, 1, problem.tokens + 1, "cu_seqlens");
  RaggedWidths widths;
  widths.of[kQueryTable] = problem.qkv_row;
  widths.of[kKeyTable] = problem.key_row();
  widths.of[kOutTable] = problem.out_row;
  widths.of[kStatisticsTable] = problem.query_heads;
  fill_ragged_tables(offsets, documents.count, problem.tokens, scratch.tables, widths, stream);
}

}  // namespace llampi::device::cuda
