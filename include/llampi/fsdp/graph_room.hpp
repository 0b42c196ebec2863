// SPDX-License-Identifier: Apache-2.0
// What captured steps may take of a GPU.
#pragma once

#include <cstdint>

namespace llampi::fsdp {

/// Nodes (kernels and copies) of all the graphs that a rank keeps. A step of Llama-3-8B has about 850 for each micro-batch. One that
/// has more than these is issued every time, which costs little: its kernels take much longer than it takes to launch them.
inline constexpr std::int64_t kGraphNodes = 9'600;

/// Memory of the node of a kernel, about, as an engineer of NVIDIA says (github.com/NVIDIA/cccl, pull request 3768). Not measured.
inline constexpr std::int64_t kGraphNodeBytes = 10'000;

}  // namespace llampi::fsdp
