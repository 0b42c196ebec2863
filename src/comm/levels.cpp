// SPDX-License-Identifier: Apache-2.0
#include "comm/levels.hpp"

#include <algorithm>
#include <bit>

#include "llampi/comm/placement.hpp"

namespace llampi::comm {

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

std::shared_ptr<const Levels> two_levels(const std::vector<int>& node_of_member, int rank) {
  Levels levels;
  std::vector<int> seen;  // nodes, in the order of levels.nodes
  for (int member = 0; member < static_cast<int>(node_of_member.size()); ++member) {
    const int node = node_of_member[static_cast<std::size_t>(member)];
    const auto known = static_cast<std::size_t>(std::ranges::find(seen, node) - seen.begin());
    if (known == seen.size()) {
      seen.push_back(node);
      levels.nodes.emplace_back();
    }
    auto& members = levels.nodes[known];
    if (member == rank) {
      levels.node = static_cast<int>(known);
      levels.place = static_cast<int>(members.size());
    }
    members.push_back(member);
  }
  const bool uneven = std::ranges::any_of(
      levels.nodes, [&](const auto& members) { return members.size() != levels.nodes.front().size(); });
  if (uneven || levels.node_count() <= 1 || levels.per_node() == 1) return nullptr;
  return std::make_shared<const Levels>(std::move(levels));
}

std::vector<int> nodes_of_members(const std::vector<int>& members, const std::vector<int>& node_of_rank) {
  std::vector<int> nodes;
  for (const int rank : members) nodes.push_back(node_of_rank[static_cast<std::size_t>(rank)]);
  return nodes;
}

bool sums_follow_placement(const std::vector<int>& node_of_member) {
  const auto levels = two_levels(node_of_member, 0);
  if (levels == nullptr) return false;
  const bool consecutive = std::ranges::all_of(levels->nodes, [](const auto& members) {
    return members.back() - members.front() + 1 == static_cast<int>(members.size());
  });
  return !consecutive || !std::has_single_bit(static_cast<unsigned>(levels->per_node()));
}

}  // namespace llampi::comm
