// SPDX-License-Identifier: Apache-2.0
// Scratch memory of the kernels that gpu_sizes.cpp does not compute itself. Plain C++: a plan needs no CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

namespace llampi::device::cuda {

/// Blocks of rms_norm_backward(), each of which sums dweight over its rows: 4 for each of the 132
/// multiprocessors of an H100 or H200; smaller GPUs start fewer.
inline constexpr std::int64_t kNormBackwardBlocks = 528;

/// float32 [blocks, hidden]
constexpr std::int64_t rms_norm_backward_bytes(std::int64_t tokens, std::int64_t hidden) {
  return std::min(tokens, kNormBackwardBlocks) * hidden * 4;
}

/// What embedding_backward() takes of the shared workspace: three int32 per token.
constexpr std::int64_t embedding_backward_bytes(std::int64_t tokens) { return 3 * tokens * 4; }

}  // namespace llampi::device::cuda
