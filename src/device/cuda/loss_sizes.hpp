// SPDX-License-Identifier: Apache-2.0
// How the workspace of LinearCrossEntropy and its gradient is cut: for the plan, which needs no CUDA, and for
// loss.cu.
//
//   the losses of the rows, float32 [rows], filled up to 256 bytes
//   the logits of a chunk of rows, [rows, logits_stride] in the dtype of the activations, as PyTorch has them;
//   their gradients replace them in place
//
// A logit of 20 in bfloat16 is off by up to 0.06, a probability by 6 %, to either side. Logits in float32 took
// twice the memory, so that the gradient of the weight was read and written for half as many rows at a time, and
// twice the time in the loss itself.
#pragma once

#include <algorithm>
#include <cstdint>

#include "llampi/core/integers.hpp"
#include "llampi/core/tensor.hpp"

namespace llampi::device::cuda {

/// Elements from one row of logits to the next: rows start at multiples of 128 bytes, so that kernels and
/// matrix products read whole vectors whatever the vocabulary.
inline constexpr std::int64_t logits_stride(std::int64_t vocabulary, DType dtype) {
  const std::int64_t line = 128 / size_of(dtype);
  return round_up(vocabulary, line);
}

/// Rows of a chunk whose logits take at most `logits_bytes` and are fewer than 2^31, as libraries index a matrix in 32 bits: all
/// if they fit, else whole tiles of the matrix products where one fits, at least 1. The last chunk may be shorter.
inline constexpr std::int64_t head_rows(std::int64_t tokens, std::int64_t vocabulary, DType dtype,
                                        std::int64_t logits_bytes) {
  constexpr std::int64_t kTile = 128, kMost = (std::int64_t{1} << 31) - 1;
  const std::int64_t stride = logits_stride(vocabulary, dtype);
  const std::int64_t fitting = std::min(logits_bytes / size_of(dtype), kMost) / stride;
  const std::int64_t whole = fitting < kTile ? fitting : fitting / kTile * kTile;
  return std::max<std::int64_t>(1, fitting >= tokens ? tokens : whole);
}

inline constexpr std::int64_t head_losses_bytes(std::int64_t rows) { return (rows * 4 + 255) / 256 * 256; }

/// The whole workspace, in bytes; it is aligned to 256.
inline constexpr std::int64_t head_loss_bytes(std::int64_t tokens, std::int64_t vocabulary, DType dtype,
                                              std::int64_t logits_bytes) {
  const std::int64_t rows = head_rows(tokens, vocabulary, dtype, logits_bytes);
  return head_losses_bytes(rows) + rows * logits_stride(vocabulary, dtype) * size_of(dtype);
}

/// The workspace where rows without a label are left out: fewer logits, so that there is room for the rows that are packed. Parts
/// begin so many bytes into it.
struct PackedHead {
  std::int64_t chunk = 0;   ///< rows; 0: all are computed, as there is no room for as few chunks
  std::int64_t logits = 0;  ///< behind the losses, both as above
  std::int64_t x = 0;       ///< of a chunk, [chunk, hidden]; its gradients replace it
  std::int64_t rows = 0;    ///< int32: where they stand in x
  std::int64_t labels = 0;  ///< int32: theirs
};
inline constexpr PackedHead packed_head(std::int64_t rows, std::int64_t tokens, std::int64_t hidden,
                                        std::int64_t vocabulary, DType dtype, std::int64_t logits_bytes) {
  constexpr std::int64_t kTile = 128, kAlignment = 256;
  const std::int64_t of_logits = logits_stride(vocabulary, dtype) * size_of(dtype),
                     of_x = hidden * size_of(dtype),
                     list = round_up(rows * size_of(DType::int32), kAlignment);
  const std::int64_t all = head_loss_bytes(tokens, vocabulary, dtype, logits_bytes);
  const std::int64_t fitting =
      (all - 2 * list - 3 * kAlignment) / (size_of(DType::float32) + of_logits + of_x);
  const std::int64_t unpacked = head_rows(tokens, vocabulary, dtype, logits_bytes);
  std::int64_t chunk = std::min({unpacked, rows, fitting});
  if (chunk < 1) return {};
  if (chunk < rows) {  // whole tiles, about as many in each chunk
    const std::int64_t most = chunk < kTile ? chunk : chunk / kTile * kTile;
    chunk = std::min(most, round_up(ceil_div(rows, ceil_div(rows, most)), kTile));
  }
  // Each chunk adds to the gradient of the weight.
  if (ceil_div(rows, chunk) > ceil_div(tokens, unpacked)) return {};
  PackedHead parts{.chunk = chunk};
  parts.logits = head_losses_bytes(chunk);
  parts.x = parts.logits + round_up(chunk * of_logits, kAlignment);
  parts.rows = parts.x + round_up(chunk * of_x, kAlignment);
  parts.labels = parts.rows + list;
  return parts;
}

}  // namespace llampi::device::cuda
