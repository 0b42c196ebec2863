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

/// Nodes are ranks that can share memory. Collective.
Topology find_topology(const Communicator& world);

}  // namespace llampi::comm
