// SPDX-License-Identifier: Apache-2.0
// Sums and maxima of integers in one message, while the ranks do something else.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "comm/mpi/stream_queue.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::comm {

/// World::start_to_combine(). Starts at once, after no other collective.
std::unique_ptr<Work> combine_integers(std::shared_ptr<Progress> progress, MPI_Comm communicator,
                                       std::span<std::int64_t> values, std::size_t sums);

}  // namespace llampi::comm
