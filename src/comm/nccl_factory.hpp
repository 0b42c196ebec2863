// SPDX-License-Identifier: Apache-2.0
// What the GPU plugin exports for make_nccl_world().
#pragma once

#include <memory>

#include "llampi/comm/nccl.hpp"
#include "llampi/device/forward.hpp"

namespace llampi::comm {

/// Puts the world into `result`. `gpu` is a device of the same plugin.
using NcclWorldFactory = void(World& mpi, device::Device& gpu, const NcclOptions& options,
                              std::unique_ptr<World>& result);
inline constexpr const char* kNcclWorldFactory = "llampi_make_nccl_world";

}  // namespace llampi::comm
