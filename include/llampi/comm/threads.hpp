// SPDX-License-Identifier: Apache-2.0
// How many threads a rank computes with.
#pragma once

#include "llampi/comm/forward.hpp"

namespace llampi::comm {

/// No machine has as many cores for one rank, and OpenMP ends without a message where it is far exceeded.
constexpr int kMostThreads = 4096;

/// Threads per rank: as asked for; if that is 0, OMP_NUM_THREADS; if that is not set, the cores that this
/// rank may run on over the ranks that share them. Collective.
/// @throws UserError if OMP_NUM_THREADS is more than kMostThreads
int threads_per_rank(World& world, int asked);
/// The same for one of `sharing` ranks that share the cores which this process may run on. Not collective.
int threads_per_rank(int asked, int sharing);

}  // namespace llampi::comm
