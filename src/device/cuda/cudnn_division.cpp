// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cudnn_division.hpp"

#include <type_traits>

#include "device/cuda/attention_sizes.hpp"
#include "llampi/core/integers.hpp"

namespace llampi::device::cuda {
namespace {

/// 0 for sequences that it holds entirely.
std::int64_t window_of(AttentionShape shape, std::int64_t longest) {
  return shape.window < longest ? shape.window : 0;
}

/// op::Attention or op::AttentionBackward.
template <class Operands>
CudnnProblem problem_of_operands(const Operands& o) {
  CudnnProblem problem;
  problem.direction = std::is_same_v<Operands, op::Attention> ? Direction::forward : Direction::backward;
  problem.tokens = o.qkv.rows;
  problem.longest = std::min(o.documents.max_seqlen, problem.tokens);
  problem.batch = o.documents.count;
  // Else no document can be shorter than the longest.
  problem.ragged = problem.batch * problem.longest != problem.tokens;
  problem.query_heads = o.shape.query_heads;
  problem.key_value_heads = o.shape.key_value_heads;
  problem.head_dim = o.shape.head_dim;
  problem.window = window_of(o.shape, problem.longest);
  problem.qkv_row = o.shape.qkv_cols();
  problem.out_row = o.shape.query_cols();
  problem.dtype = o.qkv.dtype;
  return problem;
}

CudnnDivision divide_sequences(const CudnnProblem& whole, AttentionShape shape, std::int64_t attention_room) {
  const AttentionPiece piece = attention_piece(shape, whole.batch, whole.longest, attention_room);
  if (piece.sequences == 0) return {};
  CudnnProblem problem = whole;
  problem.batch = piece.sequences;
  problem.tokens = piece.sequences * whole.longest;
  problem.key_value_heads = piece.key_value_heads;
  problem.query_heads = piece.key_value_heads * (shape.query_heads / shape.key_value_heads);
  const std::int64_t pieces = whole.batch / piece.sequences;
  return {{{.launches = {{.problem = problem, .pieces = pieces}},
            .head_pieces = shape.key_value_heads / piece.key_value_heads,
            .apart = problem.packs_keys() && pieces > 1}}};
}

CudnnDivision divide_documents(const CudnnProblem& whole, AttentionShape shape, const LengthClasses& lengths,
                               std::int64_t attention_room) {
  CudnnDivision division;
  std::int64_t above = 0, all_pieces = 0;
  std::size_t of_class = 0;
  for (const auto& launch : document_launches(shape, whole.tokens, whole.longest, attention_room)) {
    const std::int64_t most = std::min(whole.batch, whole.tokens / (above + 1));
    const std::int64_t documents = lengths.counted() ? std::min(lengths.documents[of_class], most) : most;
    ++of_class;
    if (launch.documents == 0) {
      division.leaves_documents = division.leaves_documents || documents > 0;
    } else {
      CudnnProblem problem = whole;
      problem.longest = launch.longest;
      problem.window = window_of(shape, launch.longest);
      problem.batch = launch.documents;
      problem.key_value_heads = launch.key_value_heads;
      problem.query_heads = launch.key_value_heads * (shape.query_heads / shape.key_value_heads);
      const std::int64_t head_pieces = shape.key_value_heads / launch.key_value_heads;
      if (division.parts.empty() || division.parts.back().head_pieces != head_pieces)
        division.parts.push_back({.launches = {}, .head_pieces = head_pieces});
      const std::int64_t pieces = ceil_div(documents, launch.documents);
      all_pieces += pieces;
      division.parts.back().launches.push_back({.problem = problem, .pieces = pieces, .above = above});
    }
    above = launch.longest;
  }
  const bool apart = whole.packs_keys() && (all_pieces > 1 || division.leaves_documents);
  for (CudnnPart& part : division.parts) part.apart = apart;
  return division;
}

}  // namespace

CudnnProblem problem_of(const op::Attention& o) { return problem_of_operands(o); }
CudnnProblem problem_of(const op::AttentionBackward& o) { return problem_of_operands(o); }

CudnnDivision divide_attention(const CudnnProblem& whole, AttentionShape shape, const Documents& documents,
                               std::int64_t attention_room) {
  return whole.ragged ? divide_documents(whole, shape, documents.lengths, attention_room)
                      : divide_sequences(whole, shape, attention_room);
}

CudnnPiece piece_of(const CudnnProblem& problem, AttentionShape shape, std::int64_t heads,
                    std::int64_t tokens) {
  const std::int64_t keys = heads * problem.key_value_heads * problem.head_dim;
  return {.token = problem.ragged ? 0 : tokens * problem.tokens,
          .query_column = heads * problem.query_heads * problem.head_dim,
          .key_column = shape.query_cols() + keys,
          .value_column = shape.query_cols() + shape.key_value_cols() + keys};
}

}  // namespace llampi::device::cuda
