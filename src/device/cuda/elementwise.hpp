// SPDX-License-Identifier: Apache-2.0
// RoPE and SwiGLU: what stands between matrix products and attention. Formulas, and what `maximum` is:
// llampi/device/operations.hpp.
#pragma once

#include "device/cuda/common.hpp"
#include "llampi/device/operations.hpp"

namespace llampi::device::cuda {

enum class Rotation : bool { forward, backward };

/// Rotates the query and key heads of qkv [T, Hq D + 2 Hkv D] in place by the angles of the tokens'
/// positions, int32 [1, T], or back; the value heads stay.   rope [positions, D] float32: D/2 cosines, then
/// D/2 sines
void apply_rope(Tensor positions, Tensor rope, AttentionShape shape, Rotation rotation, Tensor qkv,
                cudaStream_t stream, Tensor maximum = {});

/// activated = silu(gate) up.   gate_up [T, 2F], activated [T, F]
void apply_swiglu(Tensor gate_up, Tensor activated, cudaStream_t stream, Tensor maximum = {});

/// gate_up is overwritten with its gradient.   dactivated [T, F], gate_up [T, 2F]
void apply_swiglu_backward(Tensor dactivated, Tensor gate_up, cudaStream_t stream, Tensor maximum = {});

}  // namespace llampi::device::cuda
