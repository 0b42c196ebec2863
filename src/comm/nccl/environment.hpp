// SPDX-License-Identifier: Apache-2.0
// What NCCL finds in its environment.
#pragma once

#include "llampi/comm/comm.hpp"

namespace llampi::comm::nccl {

/// Sets variables of NCCL in this process, where the user has not, and if any two ranks have the same GPU
/// also those that make NCCL take each rank for a node of its own. NCCL reads them once: to be called before
/// anything else of NCCL. Collective.
/// @param gpu index of this rank's
/// @return whether ranks share a GPU, the same on all
bool set_environment(World& mpi, int gpu);

}  // namespace llampi::comm::nccl
