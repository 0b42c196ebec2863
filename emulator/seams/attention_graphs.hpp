// SPDX-License-Identifier: Apache-2.0
// Graphs of attention on the emulated GPU (device/cuda/cudnn_graphs.hpp): what tests can ask of them.
#pragma once

#include <vector>

#include "device/cuda/cudnn_graphs.hpp"

namespace llampi::emulator {

/// The launches of graphs since the last call of this function, in order.
std::vector<device::cuda::CudnnProblem> take_attention_launches();

}  // namespace llampi::emulator
