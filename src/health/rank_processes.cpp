// SPDX-License-Identifier: Apache-2.0
#include "health/rank_processes.hpp"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/core/process.hpp"

namespace llampi::health {
namespace {

/// What the ranks tell each other.
struct Introduction {
  std::int32_t rank = 0;
  std::string process_namespace;
  std::int64_t pid = 0;

  auto members() { return std::tie(rank, process_namespace, pid); }
};

}  // namespace

std::vector<RankProcess> exchange_processes(comm::World& world) {
  std::vector<RankProcess> processes;
  const Introduction own{world.rank(), process_namespace(), ::getpid()};
  for (const auto& text : world.all_gather_on_node(comm::packed(own))) {
    const auto [rank, space, pid] = comm::unpacked<Introduction>(text);
    processes.push_back({rank, space, pid});
  }
  return processes;
}

std::vector<std::string> exchange_hosts(comm::World& world, const std::vector<int>& ranks) {
  const auto& topology = world.topology();
  std::vector<std::string> hosts;
  for (const int rank : ranks)
    hosts.push_back(topology.nodes == 1 ? topology.host : world.broadcast(topology.host, rank));
  return hosts;
}

const RankProcess* neighbour_after(const std::vector<RankProcess>& node, int rank, int neighbour) {
  const auto at = [&](int wanted) {
    return std::find_if(node.begin(), node.end(), [&](const auto& one) { return one.rank == wanted; });
  };
  const auto own = at(rank);
  if (own->machine.empty()) return nullptr;
  for (auto other = std::next(at(neighbour)); other != own; ++other) {
    if (other == node.end()) other = node.begin();
    if (other == own) break;
    if (other->machine == own->machine) return &*other;
  }
  return nullptr;
}

const RankProcess* neighbour_of(const std::vector<RankProcess>& node, int rank) {
  const RankProcess* const other = neighbour_after(node, rank, rank);
  return other == nullptr || process_state(other->pid) == 0 ? nullptr : other;
}

std::vector<int> unseen_from_first(const std::vector<RankProcess>& node) {
  std::vector<int> ranks;
  std::set<std::string> seen = {node.front().machine};
  for (auto other = std::next(node.begin()); other != node.end(); ++other) {
    if (other->machine.empty() || seen.insert(other->machine).second) ranks.push_back(other->rank);
  }
  return ranks;
}

}  // namespace llampi::health
