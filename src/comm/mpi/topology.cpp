// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/topology.hpp"

#include <algorithm>
#include <map>

#include "comm/mpi/check.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::comm {
namespace {

/// The node as MPI names it, which may be another name than llampi::host_name(), that of the operating system.
std::string processor_name() {
  std::string name(MPI_MAX_PROCESSOR_NAME, '\0');
  int length = 0;
  check_mpi(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name");
  name.resize(static_cast<std::size_t>(length));
  return name;
}

}  // namespace

Communicator node_of(const Communicator& world) {
  int rank = 0;
  MPI_Comm handle = MPI_COMM_NULL;
  check_mpi(MPI_Comm_rank(world.get(), &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_split_type(world.get(), MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &handle),
            "MPI_Comm_split_type");
  return Communicator(handle);
}

Topology number_nodes(const std::vector<int>& leaders, int rank, std::string host) {
  const int leader = leaders[static_cast<std::size_t>(rank)];
  std::map<int, int> ranks_of;  // by leader, so in the order of the nodes
  for (const int other : leaders) ++ranks_of[other];

  Topology topology;
  topology.nodes = static_cast<int>(ranks_of.size());
  topology.node = static_cast<int>(std::distance(ranks_of.begin(), ranks_of.find(leader)));
  topology.local_rank = static_cast<int>(std::count(leaders.begin(), leaders.begin() + rank, leader));
  topology.local_ranks = ranks_of[leader];
  topology.host = std::move(host);
  topology.node_of_rank.clear();
  for (const int other : leaders)
    topology.node_of_rank.push_back(static_cast<int>(std::distance(ranks_of.begin(), ranks_of.find(other))));
  topology.uniform = std::all_of(ranks_of.begin(), ranks_of.end(),
                                 [&](const auto& node) { return node.second == topology.local_ranks; });
  return topology;
}

Topology find_topology(const Communicator& world, const Communicator& node) {
  int rank = 0;
  int size = 0;
  check_mpi(MPI_Comm_rank(world.get(), &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(world.get(), &size), "MPI_Comm_size");
  int leader = rank;  // the lowest world rank of the node
  check_mpi(MPI_Bcast(&leader, 1, MPI_INT, 0, node.get()), "MPI_Bcast");
  std::vector<int> leaders(static_cast<std::size_t>(size));
  check_mpi(MPI_Allgather(&leader, 1, MPI_INT, leaders.data(), 1, MPI_INT, world.get()), "MPI_Allgather");
  return number_nodes(leaders, rank, processor_name());
}

}  // namespace llampi::comm
