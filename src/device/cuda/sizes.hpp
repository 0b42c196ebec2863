// SPDX-License-Identifier: Apache-2.0
// Scratch memory of the kernels that gpu_sizes.cpp does not compute itself. Plain C++: a plan needs no CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

#include "llampi/core/integers.hpp"
#include "llampi/device/operation_sizes.hpp"

namespace llampi::device::cuda {

/// Blocks of rms_norm_backward(), each of which sums dweight over its rows: 4 for each of the 132
/// multiprocessors of an H100 or H200; smaller GPUs start fewer.
inline constexpr std::int64_t kNormBackwardBlocks = 528;

/// float32 [blocks, hidden]
constexpr std::int64_t rms_norm_backward_bytes(std::int64_t tokens, std::int64_t hidden) {
  return std::min(tokens, kNormBackwardBlocks) * hidden * 4;
}

/// Kernels of op::QkvTransform: a block has a head of q, k or v for each warp, and a slice of the tokens, every
/// `slices`-th one. Where they sum, 4 blocks for each of the 132 multiprocessors of an H100 or H200, whatever the GPU,
/// so that the bits of sums do not depend on it.
inline constexpr std::int64_t kTransformWarps = 8, kTransformBlocks = 528;
struct TransformGrid {
  std::int64_t slices, heads;  ///< blocks for slices of the tokens, and for heads
};
inline TransformGrid qkv_transform_grid(AttentionShape shape, std::int64_t tokens) {
  const std::int64_t all = shape.query_heads + 2 * shape.key_value_heads;
  const std::int64_t heads = ceil_div(all, kTransformWarps);
  return {std::min(tokens, ceil_div(kTransformBlocks, heads)), heads};
}

/// float32 [slices, Hq D + 2 Hkv D] for a bias; norms' [slices, blocks for heads, 2, D] is less, as there are two
/// heads, or more, for each of these blocks.
inline std::int64_t qkv_transform_backward_bytes(AttentionShape shape, std::int64_t tokens) {
  return qkv_transform_grid(shape, tokens).slices * shape.qkv_cols() * 4;
}

/// What embedding_backward() takes of the shared workspace: three int32 per token.
constexpr std::int64_t embedding_backward_bytes(std::int64_t tokens) { return 3 * tokens * 4; }

}  // namespace llampi::device::cuda
