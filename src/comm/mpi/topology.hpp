// SPDX-License-Identifier: Apache-2.0
// Which ranks share a node.
#pragma once

#include <string>
#include <vector>

#include "comm/mpi/handles.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::comm {

/// @param leaders for each world rank, the lowest world rank of its node
Topology number_nodes(const std::vector<int>& leaders, int rank, std::string host);

/// The ranks that can share memory with this one, which are its node, in order. Collective.
Communicator node_of(const Communicator& world);

/// Collective. @param node node_of(world)
Topology find_topology(const Communicator& world, const Communicator& node);

}  // namespace llampi::comm
