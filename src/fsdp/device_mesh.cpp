// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/device_mesh.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/format_ranks.hpp"
#include "llampi/comm/placement.hpp"
#include "llampi/core/config_error.hpp"

namespace llampi::fsdp {
namespace {

/// What can be set instead, with so many ranks.
std::string other_sizes(int ranks) {
  std::vector<std::string> sizes;
  for (int size = 2; size <= ranks / 2; ++size) {
    if (ranks % size == 0) sizes.push_back(std::to_string(size));
  }
  if (sizes.empty()) return "use {strategy} = full_shard";
  return fmt::format(
      "set {{shard_group_size}} to a divisor of the {} ranks ({}; such a group can span nodes), or use {{strategy}} = "
      "full_shard",
      ranks, fmt::join(sizes, ", "));
}

std::vector<std::vector<int>> groups_by_node(const std::vector<int>& node_of_rank) {
  auto nodes = comm::members_by_node(node_of_rank);
  if (nodes.size() == 1) {
    throw ConfigError(
        {.field = "shard_group_size",
         .value = "node",
         .problem = node_of_rank.size() == 1 ? "needs several nodes, and there is one rank"
                                             : fmt::format("needs several nodes, and all {} ranks are on one",
                                                           node_of_rank.size()),
         .remedy = "use {strategy} = full_shard, or set {shard_group_size} to a number of ranks"});
  }
  std::vector<std::vector<int>> groups;
  for (auto& ranks : nodes) {
    if (!groups.empty() && ranks.size() != groups.front().size()) {
      throw ConfigError({.field = "shard_group_size",
                         .value = "node",
                         .problem = fmt::format(
                             "needs the same number of ranks on every node, but one has {} and another {}",
                             groups.front().size(), ranks.size()),
                         .remedy = "start the same number on each, or " +
                                   other_sizes(static_cast<int>(node_of_rank.size()))});
    }
    groups.push_back(std::move(ranks));
  }
  return groups;
}

std::vector<std::vector<int>> groups_of_size(int ranks, int size) {
  if (ranks % size != 0 || ranks == size) {
    throw ConfigError({.field = "shard_group_size",
                       .value = std::to_string(size),
                       .problem = fmt::format("does not divide {} ranks into several equal groups", ranks),
                       .remedy = "use a smaller divisor of the number of ranks, or {strategy} = full_shard"});
  }
  std::vector<std::vector<int>> groups;
  for (int first = 0; first < ranks; first += size) {
    auto& group = groups.emplace_back(size);
    std::iota(group.begin(), group.end(), first);
  }
  return groups;
}

int most_on_a_node(const std::vector<int>& nodes) {
  std::map<int, int> of_node;
  int most = 0;
  for (const int node : nodes) most = std::max(most, ++of_node[node]);
  return most;
}

/// What the placement of ranks on nodes means for sums and for buffers.
void look_at_nodes(DeviceMesh& mesh, const std::vector<int>& node_of_rank) {
  const auto look = [&](const std::vector<int>& members, bool& inside_nodes, int& most) {
    const auto nodes = comm::nodes_of_members(members, node_of_rank);
    most = std::max(most, most_on_a_node(nodes));
    mesh.sums_follow_placement = mesh.sums_follow_placement || comm::sums_follow_placement(nodes);
    inside_nodes = inside_nodes || comm::sums_inside_nodes(nodes);
  };
  for (const auto& members : mesh.shards) look(members, mesh.shards_sum_inside_nodes, mesh.shards_on_node);
  for (const auto& members : mesh.replicas())
    look(members, mesh.replicas_sum_inside_nodes, mesh.replicas_on_node);
  mesh.ranks_on_node = most_on_a_node(node_of_rank);
  mesh.nodes = comm::format_nodes(node_of_rank);
}

}  // namespace

const std::vector<int>& DeviceMesh::shards_of(int rank) const {
  const auto group = std::find_if(shards.begin(), shards.end(), [&](const auto& ranks) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  });
  require(group != shards.end(), "a rank is in no shard group");
  return *group;
}

std::vector<int> DeviceMesh::replicas_of(int rank) const {
  const auto& mine = shards_of(rank);
  const auto index = std::find(mine.begin(), mine.end(), rank) - mine.begin();
  std::vector<int> replicas;
  for (const auto& group : shards) replicas.push_back(group[index]);
  return replicas;
}

std::vector<std::vector<int>> DeviceMesh::replicas() const {
  std::vector<std::vector<int>> groups(shards.front().size());
  for (const auto& members : shards) {
    for (std::size_t i = 0; i < groups.size(); ++i) groups[i].push_back(members[i]);
  }
  return groups;
}

DeviceMesh make_device_mesh(Strategy strategy, const std::vector<int>& node_of_rank, int shard_group_size) {
  const int ranks = static_cast<int>(node_of_rank.size());
  DeviceMesh mesh;
  if (is_hybrid(strategy)) {
    mesh.shards =
        shard_group_size == 0 ? groups_by_node(node_of_rank) : groups_of_size(ranks, shard_group_size);
  } else if (strategy == Strategy::no_shard) {
    for (int rank = 0; rank < ranks; ++rank) mesh.shards.push_back({rank});
  } else {
    mesh.shards.emplace_back(ranks);
    std::iota(mesh.shards.front().begin(), mesh.shards.front().end(), 0);
  }
  look_at_nodes(mesh, node_of_rank);
  return mesh;
}

namespace {

constexpr std::size_t kShown = 4;  // groups, and twice as many ranks, written out

std::string lists_of_ranks(const std::vector<std::vector<int>>& lists) {
  std::vector<std::string> parts;
  for (std::size_t g = 0; g < std::min(lists.size(), kShown); ++g) {
    const auto& list = lists[g];
    const bool cut = list.size() > 2 * kShown;
    parts.push_back(cut ? fmt::format("{} {} ... {}", list[0], list[1], list.back())
                        : fmt::format("{}", fmt::join(list, " ")));
  }
  return fmt::format("{}{}", fmt::join(parts, " | "), lists.size() > kShown ? " | ..." : "");
}

}  // namespace

std::string format_groups(const DeviceMesh& mesh) {
  return fmt::format("shards {}; replicas {}", lists_of_ranks(mesh.shards), lists_of_ranks(mesh.replicas()));
}

std::string describe_mesh(const DeviceMesh& mesh) {
  const int shards = mesh.shard_count(), replicas = mesh.replica_count();
  if (shards == 1 && replicas == 1) return "device mesh: 1 rank";
  if (replicas == 1) return fmt::format("device mesh: 1 shard group of all {} ranks, no replicas", shards);
  if (shards == 1) return fmt::format("device mesh: no shards, each of the {} ranks is a replica", replicas);
  return fmt::format("device mesh {} x {}: {} shard groups ({}), {} replicate groups ({})", replicas, shards,
                     replicas, lists_of_ranks(mesh.shards), shards, lists_of_ranks(mesh.replicas()));
}

}  // namespace llampi::fsdp
