// SPDX-License-Identifier: Apache-2.0
#include "llampi/plan/collective_time.hpp"

#include <algorithm>
#include <map>

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

}  // namespace

double seconds(const Phases& phases) {
  double sum = 0;
  for (const Phase& phase : phases) sum += phase.seconds();
  return sum;
}

GroupShape shape_of(const std::vector<int>& members, int ranks_per_node) {
  std::map<int, int> on_node;
  for (const int rank : members) ++on_node[rank / ranks_per_node];
  const auto [fewest, most] =
      std::ranges::minmax_element(on_node, {}, [](const auto& node) { return node.second; });
  return {static_cast<int>(members.size()), static_cast<int>(on_node.size()), most->second, fewest->second};
}

Phases all_gather_phases(const NetworkSpeed& network, GroupShape group, double whole_bytes, Route route) {
  if (group.ranks == 1) return {};
  const double part_bytes = whole_bytes / group.ranks;
  const int most = group.most_on_a_node(), fewest = group.fewest_on_a_node();
  if (group.nodes == 1 || most == 1 || route == Route::direct)
    return {direct_exchange(network, group, part_bytes)};
  // A rank receives for its node its share of the parts, but its own, and passes them on to the others. The smallest node's ranks have the
  // most parts, and the most of the node's NICs, for each.
  const auto parts_of_a_rank = [&](int on_node) { return (group.ranks + on_node - 1) / on_node; };
  const auto between = [&](int on_node) {
    return exchange(network, Resource::between_nodes, parts_of_a_rank(on_node) - 1,
                    part_bytes * on_node / most);
  };
  const auto inside = [&](int on_node) {
    return exchange(network, Resource::in_node, on_node - 1, parts_of_a_rank(on_node) * part_bytes);
  };
  const auto slower = [](Phase a, Phase b) { return a.seconds() > b.seconds() ? a : b; };
  return {slower(between(fewest), between(most)), slower(inside(fewest), inside(most))};
}

Phases reduce_scatter_phases(const NetworkSpeed& network, GroupShape group, double whole_bytes, Route route) {
  Phases phases = all_gather_phases(network, group, whole_bytes, route);
  std::ranges::reverse(phases);
  return phases;
}

Phases all_reduce_phases(const NetworkSpeed& network, GroupShape group, double whole_bytes, Route route) {
  Phases phases = reduce_scatter_phases(network, group, whole_bytes, route);
  const Phases gather = all_gather_phases(network, group, whole_bytes, route);
  phases.insert(phases.end(), gather.begin(), gather.end());
  return phases;
}

}  // namespace llampi::plan
