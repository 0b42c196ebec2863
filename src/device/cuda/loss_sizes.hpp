// SPDX-License-Identifier: Apache-2.0
// How the workspace of LinearCrossEntropy and its gradient is cut: for the plan, which needs no CUDA, and for
// loss.cu.
//
//   the losses of the rows, float32 [rows], filled up to 256 bytes
//   the logits of a chunk of rows, float32 [rows, logits_stride]; their gradients, in the dtype of the
//   activations, replace them row by row
//
// The logits are kept in float32 whatever the activations are: a logit of 20 rounded to bfloat16 is off by up
// to 0.06, a probability by 6 %. In the training of Llama-3-8B on an H200 that costs less than 1 % of a step
// (estimated: 44 ms instead of 39 of some 775), most of it because half as many rows fit into a chunk.
#pragma once

#include <algorithm>
#include <cstdint>

namespace llampi::device::cuda {

/// What the logits of a chunk may take. The gradient of the head's weight is read and written once per chunk:
/// short chunks cost time (with 512 rows its product is bound by memory on an H100; this is 2048 for a
/// vocabulary of 128256).
inline constexpr std::int64_t kLogitsBytes = std::int64_t{1} << 30;

/// Elements from one row of float32 logits to the next: rows start at multiples of 128 bytes, so that kernels
/// and matrix products read whole vectors whatever the vocabulary.
inline constexpr std::int64_t logits_stride(std::int64_t vocabulary) { return (vocabulary + 31) / 32 * 32; }

/// Rows of a chunk: whole tiles of the matrix products where one fits, at least 1. The last chunk may be
/// shorter.
inline constexpr std::int64_t head_rows(std::int64_t tokens, std::int64_t vocabulary) {
  constexpr std::int64_t kTile = 128;
  const std::int64_t fitting = kLogitsBytes / (logits_stride(vocabulary) * 4);
  const std::int64_t whole = fitting < kTile ? fitting : fitting / kTile * kTile;
  return std::max<std::int64_t>(1, std::min(tokens, whole));
}

inline constexpr std::int64_t head_losses_bytes(std::int64_t rows) { return (rows * 4 + 255) / 256 * 256; }

/// The whole workspace, in bytes; it is aligned to 256.
inline constexpr std::int64_t head_loss_bytes(std::int64_t tokens, std::int64_t vocabulary) {
  const std::int64_t rows = head_rows(tokens, vocabulary);
  return head_losses_bytes(rows) + rows * logits_stride(vocabulary) * 4;
}

}  // namespace llampi::device::cuda
