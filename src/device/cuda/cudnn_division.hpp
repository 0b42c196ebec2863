// SPDX-License-Identifier: Apache-2.0
// Into which launches of cuDNN's graphs an attention is divided: by shapes, lengths of documents and room, without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "device/cuda/cudnn_problem.hpp"
#include "llampi/device/operations.hpp"

namespace llampi::device::cuda {

class CudnnGraph;

/// Launches of one graph, for pieces of equal size.
struct CudnnLaunches {
  CudnnProblem problem;
  std::int64_t pieces = 0;  ///< of the sequences, or of the documents of this class, one after another
  std::int64_t above = 0;   ///< ragged: for documents of more tokens
  const CudnnGraph* graph = nullptr;  ///< by whoever launches it
};

/// A part of an operation: for each piece of the heads, all of these launches.
struct CudnnPart {
  std::vector<CudnnLaunches> launches;  ///< of one graph; or ragged, for some classes of lengths
  std::int64_t head_pieces = 0;
  /// Documents are launched apart: what one launch leaves in the rows of the documents of others is not
  /// known, so gradients are taken from the rows of its own.
  bool apart = false;

  const CudnnProblem& problem() const { return launches.front().problem; }
  bool has_launches() const {
    return std::ranges::any_of(launches, [](const CudnnLaunches& l) { return l.pieces > 0; });
  }
};

/// How an operation is done: one part; or of documents, one for the classes of lengths with as many pieces of the heads.
struct CudnnDivision {
  std::vector<CudnnPart> parts;   ///< none: there is no way
  bool leaves_documents = false;  ///< to the native kernels: of classes for which there is no room

  std::int64_t longest() const { return parts.back().launches.back().problem.longest; }
};

/// What the operation is as a whole.
CudnnProblem problem_of(const op::Attention& o);
CudnnProblem problem_of(const op::AttentionBackward& o);

/// Sequences of equal length come in pieces of at most `attention_room` bytes of dP. Packed documents of similar length are launched
/// together: how many documents and heads a launch has depends on shapes only, so that what is in the micro-batch decides how
/// often a graph is launched, and never which.
/// @param whole problem_of() an operation with this shape and these documents
/// @returns no parts where not even the smallest piece has room for its dP
CudnnDivision divide_attention(const CudnnProblem& whole, AttentionShape shape, const Documents& documents,
                               std::int64_t attention_room);

/// A piece of the heads and of the tokens.
struct CudnnPiece {
  std::int64_t token = 0;                         ///< the first
  std::int64_t query_column = 0;                  ///< in rows of qkv and out
  std::int64_t key_column = 0, value_column = 0;  ///< in rows of qkv
};
/// Of the heads and tokens that are in pieces of `problem`, those numbered `heads` and `tokens`.
CudnnPiece piece_of(const CudnnProblem& problem, AttentionShape shape, std::int64_t heads,
                    std::int64_t tokens);

}  // namespace llampi::device::cuda
