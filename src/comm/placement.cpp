// SPDX-License-Identifier: Apache-2.0
#include "llampi/comm/placement.hpp"

#include <algorithm>
#include <cstdint>
#include <map>

#include "llampi/comm/sum_tree.hpp"

namespace llampi::comm {
namespace {

/// Whether the sum of `count` nodes' sums is a part of the tree over their ranks.
bool is_part_of_tree(const std::vector<int>* ranks_of_node, std::int64_t count) {
  if (count == 1) return true;
  const std::int64_t left = tree_left(count);
  const auto ranks = [&](std::int64_t begin, std::int64_t end) {
    std::int64_t sum = 0;
    for (std::int64_t n = begin; n < end; ++n) sum += std::ssize(ranks_of_node[n]);
    return sum;
  };
  return ranks(0, left) == tree_left(ranks(0, count)) && is_part_of_tree(ranks_of_node, left) &&
         is_part_of_tree(ranks_of_node + left, count - left);
}

}  // namespace

std::vector<std::vector<int>> members_by_node(const std::vector<int>& node_of_member) {
  std::vector<std::vector<int>> nodes;
  std::map<int, std::size_t> place_of_node;  // in `nodes`
  for (int member = 0; member < static_cast<int>(node_of_member.size()); ++member) {
    const int node = node_of_member[static_cast<std::size_t>(member)];
    const auto [place, is_new] = place_of_node.try_emplace(node, nodes.size());
    if (is_new) nodes.emplace_back();
    nodes[place->second].push_back(member);
  }
  return nodes;
}

std::vector<int> nodes_of_members(const std::vector<int>& members, const std::vector<int>& node_of_rank) {
  std::vector<int> nodes;
  for (const int rank : members) nodes.push_back(node_of_rank[static_cast<std::size_t>(rank)]);
  return nodes;
}

bool sums_inside_nodes(const std::vector<int>& node_of_member) {
  const auto nodes = members_by_node(node_of_member);
  return nodes.size() > 1 && nodes.size() < node_of_member.size();
}

bool sums_follow_placement(const std::vector<int>& node_of_member) {
  const auto nodes = members_by_node(node_of_member);
  const bool consecutive = std::ranges::all_of(nodes, [](const auto& members) {
    return members.back() - members.front() + 1 == static_cast<int>(members.size());
  });
  return sums_inside_nodes(node_of_member) &&
         !(consecutive && is_part_of_tree(nodes.data(), std::ssize(nodes)));
}

}  // namespace llampi::comm
