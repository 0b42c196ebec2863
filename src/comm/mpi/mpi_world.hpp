// SPDX-License-Identifier: Apache-2.0
// The world over MPI, for tests that call MPI themselves.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "llampi/comm/comm.hpp"

namespace llampi::comm {

/// A communicator of all ranks, in order; the world's own, to be duplicated rather than sent on. Valid as
/// long as the world.
MPI_Comm mpi_communicator(const World& world);

/// World::group() that passes no count larger than `max_count` to MPI, to test what long messages take.
std::unique_ptr<Group> mpi_group_with_small_counts(World& world, const std::vector<int>& members,
                                                   std::int64_t max_count);

}  // namespace llampi::comm
