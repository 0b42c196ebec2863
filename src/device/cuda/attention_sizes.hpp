// SPDX-License-Identifier: Apache-2.0
// Scratch memory of the GPU's attention: plain C++, for the plan and for the device alike.
#pragma once

#include <cstdint>

#include "llampi/device/operation_sizes.hpp"

namespace llampi::device::cuda {

/// The own kernels need none; cuDNN's want log_sum_exp in another order, float32 [T, Hq], and small tables.
inline constexpr std::int64_t attention_forward_bytes(AttentionShape shape, std::int64_t tokens) {
  return shape.query_heads * tokens * 4 + (std::int64_t{1} << 20);
}

/// Own kernels: delta = rowsum(dout * out), float32 [Hq, T].
inline constexpr std::int64_t own_attention_backward_bytes(AttentionShape shape, std::int64_t tokens) {
  return shape.query_heads * tokens * 4;
}

/// cuDNN: gradients by query head in float32, packed copies of k and v, gradients of k and v in float32 where
/// query heads share them, two float32 rows [Hq, T], and small tables; what cuDNN 9.19 asks for, at most.
inline constexpr std::int64_t cudnn_attention_backward_bytes(AttentionShape shape, std::int64_t tokens) {
  const std::int64_t hq = shape.query_heads, hkv = shape.key_value_heads;
  const std::int64_t per_column = 4 * (hq + 2 * hkv) + (hq > hkv ? 8 * hq : 0) + 8 * hkv;
  return tokens * (shape.head_dim * per_column + 8 * hq) + (std::int64_t{1} << 20);
}

/// Enough for either: which kernels run is known on the GPU only.
inline constexpr std::int64_t attention_backward_bytes(AttentionShape shape, std::int64_t tokens) {
  const std::int64_t own = own_attention_backward_bytes(shape, tokens);
  const std::int64_t cudnn = cudnn_attention_backward_bytes(shape, tokens);
  return own > cudnn ? own : cudnn;
}

}  // namespace llampi::device::cuda
