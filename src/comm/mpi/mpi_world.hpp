// SPDX-License-Identifier: Apache-2.0
// The world over MPI, for tests that call MPI themselves.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/mpi/mpi_group.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::comm {

/// A communicator of all ranks, in order; the world's own, to be duplicated rather than sent on. Valid as
/// long as the world.
MPI_Comm mpi_communicator(const World& world);

/// World::group() with other options.
std::unique_ptr<Group> make_mpi_group(World& world, const std::vector<int>& members,
                                      const MpiGroupOptions& options);

}  // namespace llampi::comm
