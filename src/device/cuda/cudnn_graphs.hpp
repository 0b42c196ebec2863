// SPDX-License-Identifier: Apache-2.0
// cuDNN's graphs of causal attention in our layout: what the frontend is asked to build.
//
// q, k, v are columns of the rows of qkv, out and the gradients likewise: 4-D views [batch, heads, longest,
// D] without copies. Two things cuDNN does not take as we have them, so they go through the workspace:
//   statistics  log_sum_exp [Hq, T] is read by the backward direction as [batch, Hq, longest] (before 9.26 it
//               ignores the strides), and by both directions as [T, Hq] for packed documents;
//   k, v        packed documents, backward: with grouped queries, dK and dV of every query head are kept in
//               rows that are Hq / Hkv times as long as those of dK; in rows of qkv that would be Hq / Hkv
//               times the whole of it. dK shares K's table of offsets, so K is copied too.
// A window is the left bound of the diagonal band: the frontend's mask is `column + bound > row`, so the bound counts the
// query itself, as AttentionShape::window does.
// cuDNN's statistics are the natural logarithm of the sum of exp(scale q k): its backward graph restores the
// probabilities as exp(scale q k - statistics), node "exp_s" of the frontend's sdpa_backward.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "device/cuda/cudnn_problem.hpp"

namespace cudnn_frontend::graph {
class Graph;
}

namespace llampi::device::cuda {

/// What graphs are built on.
struct CudnnGpu {
  int compute_capability = 0;      ///< 90 for 9.0
  cudnnHandle_t handle = nullptr;  ///< null: a GPU that is not here; its graphs cannot be executed
  std::string properties;          ///< of one that is not here; see make_cudnn_attention()
};

/// Names of the operands in execute().
enum CudnnOperand : std::int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kStatistics,
  kOutGradient,
  kQueryGradient,
  kKeyGradient,
  kValueGradient,
  // int32 [batch], ragged only
  kQueryLengths,
  kKeyLengths,
  // int64 [batch + 1], ragged only
  kQueryOffsets,
  kKeyOffsets,
  kValueOffsets,
  kOutOffsets,
  kStatisticsOffsets,
};

using CudnnOperands = std::unordered_map<std::int64_t, void*>;

/// A graph that can be executed.
class CudnnGraph {
 public:
  /// @param workspace_bytes kernels that need more for themselves are passed over
  /// @throws Error with cuDNN's reason if the problem is not supported
  CudnnGraph(const llampi::device::cuda::CudnnGpu& gpu, const llampi::device::cuda::CudnnProblem& problem,
             bool deterministic, std::int64_t workspace_bytes);

  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  /// On the handle's stream. @throws Error
  void execute(cudnnHandle_t handle, llampi::device::cuda::CudnnOperands& operands, void* workspace) const;

 private:
  std::shared_ptr<cudnn_frontend::graph::Graph> graph_;
  std::int64_t workspace_bytes_ = 0;
};

}  // namespace llampi::device::cuda
