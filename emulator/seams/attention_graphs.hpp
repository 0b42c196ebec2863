// SPDX-License-Identifier: Apache-2.0
// Graphs of attention on the emulated GPU (device/cuda/cudnn_graphs.hpp): what tests can ask of them.
#pragma once

#include <vector>

#include "device/cuda/cudnn_graphs.hpp"

namespace llampi::emulator {

/// What graphs were asked for since the last call of this function, in order: each would be compiled then.
std::vector<device::cuda::CudnnProblem> take_attention_graphs();
/// The launches of graphs since the last call of this function, in order.
std::vector<device::cuda::CudnnProblem> take_attention_launches();

}  // namespace llampi::emulator
