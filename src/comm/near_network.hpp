// SPDX-License-Identifier: Apache-2.0
// Network devices of ranks that use MPI. UCX and libfabric choose, while MPI starts, those near the cores on which the process may
// run then. Where the launcher has bound no rank, these are all cores, and all ranks would choose the same devices; llampi
// binds ranks later, when they know of each other. So a rank starts MPI on the cores that it is likely to have.
// NCCL needs none of this: it chooses by the GPU.
#pragma once

#include <functional>
#include <optional>

#include "comm/cores.hpp"
#include "comm/node_topology.hpp"
#include "llampi/comm/binding.hpp"

namespace llampi::comm {

struct PlaceOnNode {
  int rank = 0, ranks = 1;  ///< among those of the node
};

/// As the launcher's variables say: those of Open MPI, Slurm, Hydra or PALS. None if they say nothing, or nodes differ.
/// @param variable std::getenv
std::optional<PlaceOnNode> place_on_node(const std::function<const char*(const char*)>& variable);

/// What bind_ranks() gives a rank whose launcher has bound none. None if it has, or if there are too few cores.
/// @param usable where the rank may run
std::optional<Cpus> cores_to_start_on(const NodeTopology& node, const Cpus& usable, PlaceOnNode place);

/// Until it is destroyed, which is to be after MPI_Init. Binds nothing where there are fewer than two devices, or
/// cores_to_start_on() has none.
Binding bind_while_mpi_starts();

}  // namespace llampi::comm
