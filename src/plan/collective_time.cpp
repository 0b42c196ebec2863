// SPDX-License-Identifier: Apache-2.0
#include "llampi/plan/collective_time.hpp"

#include <algorithm>
#include <map>

#include "llampi/core/integers.hpp"

namespace llampi::plan {
namespace {

/// `messages` of `bytes` each, from every rank, while it starts `others` besides.
Phase exchange(const NetworkSpeed& network, Resource resource, int messages, double bytes, int others = 0) {
  const LinkSpeed& link = resource == Resource::in_node ? network.in_node : network.between_nodes;
  if (messages == 0) return {resource};
  return {resource, link.latency_seconds + (messages + others) * network.seconds_per_message,
          messages * bytes / (link.bytes_per_second * network.bandwidth_reached)};
}

/// To each other rank its part. Messages inside the node and between nodes are under way at the same time.
Phase direct_exchange(const NetworkSpeed& network, GroupShape group, double part_bytes) {
  const int per_node = group.most_on_a_node();
  const int peers_inside = per_node - 1, peers_outside = group.ranks - group.fewest_on_a_node();
  const Phase inside = exchange(network, Resource::in_node, peers_inside, part_bytes, peers_outside);
  if (group.nodes == 1) return inside;
  const Phase between = exchange(network, Resource::between_nodes, peers_outside, part_bytes, peers_inside);
  return inside.seconds() > between.seconds() ? inside : between;
}

bool has_two_levels(GroupShape group, Route route) {
  return route == Route::two_levels && group.nodes > 1 && group.most_on_a_node() > 1;
}

/// That go through a rank of a node with so many ranks, at most.
int parts_of_a_rank(GroupShape group, int on_node) { return ceil_div(group.ranks, on_node); }

/// Those of the node on which they take the longest.
template <class PhasesOfNode>
Phases slowest_node(GroupShape group, const PhasesOfNode& phases_of) {
  Phases most = phases_of(group.most_on_a_node()), fewest = phases_of(group.fewest_on_a_node());
  return seconds(fewest) > seconds(most) ? fewest : most;
}

/// A rank receives for its node its share of the parts, but its own. The smallest node's ranks have the most parts and, where they share
/// the node's NICs, the most of these for each.
Phase between_nodes(const NetworkSpeed& network, GroupShape group, double whole_bytes) {
  const double part_bytes = whole_bytes / group.ranks;
  return slowest_node(group,
                      [&](int on_node) {
                        const double share = network.ranks_share_nics
                                                 ? static_cast<double>(on_node) / group.most_on_a_node()
                                                 : 1;
                        return Phases{exchange(network, Resource::between_nodes,
                                               parts_of_a_rank(group, on_node) - 1, part_bytes * share)};
                      })
      .front();
}

/// A rank passes so many parts on to each of the others, or receives them from each.
Phase inside_node(const NetworkSpeed& network, GroupShape group, double whole_bytes, int on_node, int parts) {
  return exchange(network, Resource::in_node, on_node - 1, parts * whole_bytes / group.ranks);
}

}  // namespace

double seconds(const Phases& phases) {
  double sum = 0;
  for (const Phase& phase : phases) sum += phase.seconds();
  return sum;
}

GroupShape shape_of(const std::vector<int>& members, const std::vector<int>& node_of_rank) {
  std::map<int, int> on_node;
  for (const int rank : members) ++on_node[node_of_rank[static_cast<std::size_t>(rank)]];
  const auto [fewest, most] =
      std::ranges::minmax_element(on_node, {}, [](const auto& node) { return node.second; });
  return {static_cast<int>(members.size()), static_cast<int>(on_node.size()), most->second, fewest->second};
}

Phases all_gather_phases(const NetworkSpeed& network, GroupShape group, double whole_bytes, Route route) {
  if (group.ranks == 1) return {};
  if (!has_two_levels(group, route)) return {direct_exchange(network, group, whole_bytes / group.ranks)};
  return {between_nodes(network, group, whole_bytes),
          slowest_node(group, [&](int on_node) {
            return Phases{inside_node(network, group, whole_bytes, on_node, parts_of_a_rank(group, on_node))};
          }).front()};
}

Phases reduce_scatter_phases(const NetworkSpeed& network, GroupShape group, double whole_bytes, Route route) {
  if (group.ranks == 1 || !has_two_levels(group, route))
    return all_gather_phases(network, group, whole_bytes, route);
  Phases phases = slowest_node(group, [&](int on_node) {
    Phases rounds;
    const int per_round = group.ranks / on_node;
    for (int parts = parts_of_a_rank(group, on_node); parts > 0; parts -= per_round) {
      const int sent = std::min(parts, per_round);
      Phase round = inside_node(network, group, whole_bytes, on_node, sent);
      if (network.sends_parts_apart)
        round.latency_seconds += (on_node - 1) * (sent - 1) * network.seconds_per_message;
      rounds.push_back(round);
    }
    return rounds;
  });
  phases.push_back(between_nodes(network, group, whole_bytes));
  return phases;
}

Phases in_pieces(Phases phases, std::int64_t pieces) {
  for (Phase& phase : phases) phase.latency_seconds *= static_cast<double>(pieces);
  return phases;
}

Phases all_reduce_phases(const NetworkSpeed& network, GroupShape group, double whole_bytes, Route route) {
  Phases phases = reduce_scatter_phases(network, group, whole_bytes, route);
  const Phases gather = all_gather_phases(network, group, whole_bytes, route);
  phases.insert(phases.end(), gather.begin(), gather.end());
  return phases;
}

}  // namespace llampi::plan
