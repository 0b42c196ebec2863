// SPDX-License-Identifier: Apache-2.0
// RoPE and SwiGLU: what stands between matrix products and attention. Formulas, and what `maximum` is:
// llampi/device/operations.hpp.
#pragma once

#include "device/cuda/common.hpp"
#include "llampi/device/operations.hpp"

namespace llampi::device::cuda {

/// op::Rope, of which op::QkvRope and its backward direction are a part.
void apply_rope(const op::Rope& o, cudaStream_t stream);

/// The same with a bias or norms of heads (qkv_transform.cu).
void apply_qkv_transform(const op::Rope& o, cudaStream_t stream);

/// activated = silu(gate) up.   gate_up [T, 2F], activated [T, F]
void apply_swiglu(Tensor gate_up, Tensor activated, cudaStream_t stream, Tensor maximum = {});

void apply_swiglu_backward(const op::SwigluBackward& o, cudaStream_t stream);

}  // namespace llampi::device::cuda
