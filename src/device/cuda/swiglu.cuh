// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/kernels.cuh"

namespace llampi::device::cuda {

__device__ inline float sigmoid(float x) { return __fdividef(1.0F, 1.0F + __expf(-x)); }

__device__ inline float swiglu(float gate, float up) { return gate * sigmoid(gate) * up; }

/// Of silu(g) up, from its gradient d: silu'(g) = s (1 + g (1 - s)) with s = sigmoid(g).
__device__ inline void swiglu_gradient(float d, float g, float up, float& dgate, float& dup) {
  const float s = sigmoid(g);
  dgate = d * up * s * fmaf(g, 1.0F - s, 1.0F);
  dup = d * g * s;
}

}  // namespace llampi::device::cuda
