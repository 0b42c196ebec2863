// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/node_ranks.hpp"

#include <algorithm>

#include "llampi/comm/exchange.hpp"

namespace llampi::checkpoint {
int groups_per_node(int wanted, int most, const comm::Topology& topology) {
  constexpr int kMostOfAll = 256;
  if (wanted == 0) wanted = std::clamp(kMostOfAll / topology.nodes, 1, most);
  return std::min(wanted, topology.local_ranks);
}

NodeRanks::NodeRanks(comm::World& world, int groups) {
  const auto& topology = world.topology();
  const int group =
      topology.local_rank * groups / topology.local_ranks;  // neighbours, whose pieces are neighbours
  group_ = world.split(topology.node * world.size() + group);
  firsts_ = world.split(group_->rank() == 0 ? 0 : -1);
}

std::vector<io::RangeSum> NodeRanks::gather(
    const std::vector<io::RangeSum>& own,
    const std::function<std::vector<io::RangeSum>(std::vector<io::RangeSum>)>& combine) const {
  auto of_group = comm::gather_values(*group_, own);
  if (!is_first()) return {};
  return comm::gather_values(*firsts_, combine(std::move(of_group)));
}

}  // namespace llampi::checkpoint
