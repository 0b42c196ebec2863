// SPDX-License-Identifier: Apache-2.0
// The gradient of a shard as the kernels of the update read it: in float32, whatever it is kept in.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/cpu/cpu_device.hpp"

namespace llampi::device {

/// @throws Error unless the gradient is float32 or bfloat16
inline void check_gradient(const Tensor& gradient) {
  if (gradient.dtype == DType::float32 || gradient.dtype == DType::bfloat16) return;
  throw Error(fmt::format("this device has no kernels for a gradient in {}: it takes float32 or bfloat16",
                          to_string(gradient.dtype)));
}

/// Elements [first, first + n) of a gradient, at most kUpdatePiece: in place if they are float32, else
/// widened, which is exact, into a buffer.
class GradientPiece {
 public:
  GradientPiece(const Kernels& kernels, const Tensor& gradient, std::int64_t first, std::int64_t n) {
    if (gradient.dtype == DType::bfloat16) {
      kernels.from_bfloat16(n, halves(gradient) + first, buffer_);
      data_ = buffer_;
    } else {
      data_ = static_cast<const float*>(gradient.data) + first;
    }
  }
  GradientPiece(const GradientPiece&) = delete;
  GradientPiece& operator=(const GradientPiece&) = delete;
  const float* data() const { return data_; }

 private:
  const float* data_;
  alignas(64) float buffer_[kUpdatePiece];
};

/// body(n, values) for consecutive pieces of [begin, end), n <= kUpdatePiece
template <class Body>
void for_each_piece(const Kernels& kernels, const Tensor& gradient, std::int64_t begin, std::int64_t end,
                    const Body& body) {
  for (; begin < end; begin += kUpdatePiece) {
    const std::int64_t n = std::min(kUpdatePiece, end - begin);
    const GradientPiece piece(kernels, gradient, begin, n);
    body(n, piece.data());
  }
}

}  // namespace llampi::device
