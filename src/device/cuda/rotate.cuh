// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/kernels.cuh"

namespace llampi::device::cuda {

/// RoPE of one pair (a[j], a[j + D/2]) of a head: op::QkvRope. Back with the negative sine.
__device__ inline void rotate(float& a, float& b, float cosine, float sine) {
  const float x = a, y = b;
  a = fmaf(x, cosine, -(y * sine));
  b = fmaf(y, cosine, x * sine);
}

}  // namespace llampi::device::cuda
