// SPDX-License-Identifier: Apache-2.0
// How fast each rank computes and each link carries data, to find those that hold a job up.
#pragma once

#include <functional>
#include <vector>

#include "llampi/comm/compute.hpp"
#include "llampi/comm/forward.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/selfcheck/outliers.hpp"

namespace llampi::selfcheck {

/// Seconds since some moment, on this rank.
using Clock = std::function<double()>;

/// Seconds of each rank, by rank, for the same matrix product in `dtype`: the shortest of several, while all ranks
/// compute. Where that finds a slow rank, it is measured again, twice at most: a rank is slow that was slow each time.
/// Takes 256 MiB of a GPU in bfloat16, 8 MiB of a host. Collective.
std::vector<double> time_products(comm::World& world, const comm::Compute& compute, DType dtype,
                                  const Clock& clock = steady_seconds);

/// Pairs exchange messages of this many bytes, in both directions at once: the median time of several.
inline constexpr std::int64_t kMessageBytes = std::int64_t{4} << 20;

struct LinkSpeeds {
  std::vector<Link> between_nodes;  ///< between the first ranks of nodes; ends are nodes
  std::vector<Link> inside_nodes;   ///< ends are ranks
};
/// Every pair of nodes and every pair of ranks of a node, as many pairs at once as have no rank in common, with what
/// moves the job's data: MPI or NCCL. Slow ones are measured again, as above, and the best counts. Collective.
/// @param progress called before each round: there are about as many as nodes, then as many as ranks of a node
LinkSpeeds measure_links(
    comm::World& world, const comm::Compute& compute, const std::function<void()>& progress = [] {},
    const Clock& clock = steady_seconds);

/// Of each rank, by rank, in each direction: bytes per second of copies between its device and page-locked memory of its host, both
/// ways at once, while all ranks copy; the best of several. Takes 64 MiB of both memories. Collective.
std::vector<double> measure_host_copies(comm::World& world, const comm::Compute& compute,
                                        const Clock& clock = steady_seconds);

}  // namespace llampi::selfcheck
