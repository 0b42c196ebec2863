// SPDX-License-Identifier: Apache-2.0
// Ranks on several nodes, which only the topology says that there are.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "comm/mpi/mpi_world.hpp"
#include "llampi/comm/comm.hpp"
#include "support/world_over.hpp"

namespace llampi::test {

/// The world of the test, with its ranks on other nodes; remembers which groups were asked for.
class SimulatedNodes final : public WorldOver {
 public:
  SimulatedNodes(comm::World& world, const std::vector<int>& node_of_rank) : WorldOver(world) {
    const auto of = [&](int rank) { return node_of_rank[static_cast<std::size_t>(rank)]; };
    topology_.node = of(world.rank());
    topology_.nodes = *std::max_element(node_of_rank.begin(), node_of_rank.end()) + 1;
    topology_.host = fmt::format("node{}", topology_.node);
    topology_.local_ranks = 0;
    for (int rank = 0; rank < world.size(); ++rank) {
      if (of(rank) != topology_.node) continue;
      if (rank < world.rank()) ++topology_.local_rank;
      ++topology_.local_ranks;
    }
    topology_.uniform = topology_.local_ranks * topology_.nodes == world.size();
    topology_.node_of_rank = node_of_rank;
  }

  const std::vector<std::vector<int>>& groups() const { return groups_; }

  const comm::Topology& topology() const override { return topology_; }
  std::unique_ptr<comm::Group> group(const std::vector<int>& members,
                                     const std::vector<device::Stream>& streams) override {
    groups_.push_back(members);
    return comm::make_mpi_group(world_, members,
                                {.node_of_rank = topology_.node_of_rank, .streams = streams});
  }

 private:
  comm::Topology topology_;
  std::vector<std::vector<int>> groups_;
};

}  // namespace llampi::test
