// SPDX-License-Identifier: Apache-2.0
#include "comm/levels.hpp"

#include <algorithm>
#include <utility>

#include "llampi/comm/placement.hpp"

namespace llampi::comm {
namespace {

/// See Levels::parts_of_place. The parts of other nodes are dealt out in turns.
std::vector<std::vector<int>> parts_through_places(const std::vector<std::vector<int>>& nodes, int node) {
  std::vector<std::vector<int>> parts(nodes[static_cast<std::size_t>(node)].size());
  std::size_t dealt = 0;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const bool own = static_cast<int>(n) == node;
    for (std::size_t place = 0; place < nodes[n].size(); ++place)
      parts[(own ? place : dealt++) % parts.size()].push_back(nodes[n][place]);
  }
  return parts;
}

}  // namespace

std::vector<EvenRun> even_runs(const std::vector<int>& numbers) {
  std::vector<EvenRun> runs;
  for (int i = 0; i < static_cast<int>(numbers.size()); ++i) {
    const int number = numbers[static_cast<std::size_t>(i)];
    EvenRun* const last = runs.empty() ? nullptr : &runs.back();
    if (last != nullptr && last->count == 1) last->step = number - last->first;
    if (last != nullptr && number == last->first + last->count * last->step) {
      ++last->count;
    } else {
      runs.push_back({.begin = i, .first = number});
    }
  }
  return runs;
}

std::vector<int> Levels::parts_of(int of_place, int round) const {
  const auto& all = parts_of_place[static_cast<std::size_t>(of_place)];
  const auto begin = std::min(std::ssize(all), std::ptrdiff_t{round} * parts_per_round);
  const auto end = std::min(std::ssize(all), begin + parts_per_round);
  return {all.begin() + begin, all.begin() + end};
}

std::shared_ptr<const Levels> two_levels(const std::vector<int>& node_of_member, int rank) {
  if (!sums_inside_nodes(node_of_member)) return nullptr;
  Levels levels;
  levels.nodes = members_by_node(node_of_member);
  for (int node = 0; node < levels.node_count(); ++node) {
    const auto& members = levels.nodes[static_cast<std::size_t>(node)];
    const auto found = std::ranges::find(members, rank);
    if (found == members.end()) continue;
    levels.node = node;
    levels.place = static_cast<int>(found - members.begin());
  }
  const auto ranks = static_cast<int>(node_of_member.size());
  for (int node = 0; node < levels.node_count(); ++node) {
    auto parts = parts_through_places(levels.nodes, node);
    const auto with_own = std::ranges::find_if(
        parts, [&](const auto& owners) { return std::ranges::find(owners, rank) != owners.end(); });
    levels.through.push_back(
        levels.nodes[static_cast<std::size_t>(node)][static_cast<std::size_t>(with_own - parts.begin())]);
    const int per_round = ranks / static_cast<int>(parts.size());
    levels.rounds =
        std::max(levels.rounds, (static_cast<int>(parts.front().size()) + per_round - 1) / per_round);
    if (node != levels.node) continue;
    levels.parts_per_round = per_round;
    levels.parts_of_place = std::move(parts);
  }
  return std::make_shared<const Levels>(std::move(levels));
}

}  // namespace llampi::comm
