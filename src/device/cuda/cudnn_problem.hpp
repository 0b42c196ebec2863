// SPDX-License-Identifier: Apache-2.0
// What cuDNN's graphs of attention are built for, without a header of cuDNN.
#pragma once

#include <compare>
#include <cstdint>

#include "llampi/core/tensor.hpp"

namespace llampi::device::cuda {

enum class Direction : std::uint8_t { forward, backward };

/// What a graph is built for: all of an attention, or a piece of it that has some of its sequences and heads.
struct CudnnProblem {
  Direction direction = Direction::forward;
  /// Packed documents, at most `batch` of at most `longest` tokens each, anywhere in `tokens`; else `batch`
  /// sequences of `longest` tokens, which are `tokens` together.
  bool ragged = false;
  std::int64_t batch = 0, longest = 0, tokens = 0;
  std::int64_t query_heads = 0, key_value_heads = 0, head_dim = 0;
  std::int64_t window = 0;  ///< as AttentionShape::window; 0 too where it is no shorter than `longest`
  std::int64_t qkv_row = 0, out_row = 0;  ///< elements from a token of qkv, or of out, to the next one's
  DType dtype = DType::bfloat16;

  auto operator<=>(const CudnnProblem&) const = default;

  bool packs_keys() const { return ragged && direction == Direction::backward; }
  std::int64_t key_row() const { return packs_keys() ? key_value_heads * head_dim : qkv_row; }
};

}  // namespace llampi::device::cuda
