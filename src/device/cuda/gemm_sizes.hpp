// SPDX-License-Identifier: Apache-2.0
// Scratch memory of the matrix products: plain C++, for the plan and for the device alike.
#pragma once

#include <cstdint>

namespace llampi::device::cuda {

/// Of cuBLASLt, for the whole run: what the fastest kernels of Hopper like.
inline constexpr std::int64_t kGemmWorkspace = std::int64_t{64} << 20;

}  // namespace llampi::device::cuda
