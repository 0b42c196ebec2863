// SPDX-License-Identifier: Apache-2.0
#include "health/watch_tree.hpp"

#include <algorithm>

#include "llampi/core/integers.hpp"

namespace llampi::health {

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

WatchTree::WatchTree(const std::vector<int>& node_of_rank, int fan_out)
    : node_of_rank_(node_of_rank),
      fan_out_(fan_out),
      nodes_(*std::max_element(node_of_rank.begin(), node_of_rank.end()) + 1) {}

int WatchTree::leader_of(int node) const {
  const auto first = std::find(node_of_rank_.begin(), node_of_rank_.end(), node);
  return static_cast<int>(first - node_of_rank_.begin());
}

/// All but the first, in at most fan_out_ parts.
std::vector<WatchTree::Nodes> WatchTree::below(const Nodes& nodes) const {
  std::vector<Nodes> parts;
  int begin = nodes.first + 1;
  for (int left = fan_out_; begin < nodes.end; --left) {
    const int size = ceil_div(nodes.end - begin, left);
    parts.push_back({begin, begin + size});
    begin += size;
  }
  return parts;
}

std::vector<WatchTree::Nodes> WatchTree::path_to(int node) const {
  std::vector<Nodes> path = {{0, nodes_}};
  while (path.back().first != node) {
    const auto parts = below(path.back());
    path.push_back(
        *std::find_if(parts.begin(), parts.end(), [&](const Nodes& part) { return node < part.end; }));
  }
  return path;
}

int WatchTree::parent(int rank) const {
  if (!is_leader(rank)) return leader_of(node_of(rank));
  const auto path = path_to(node_of(rank));
  return path.size() == 1 ? -1 : leader_of(path[path.size() - 2].first);
}

std::vector<int> WatchTree::children(int rank) const {
  if (!is_leader(rank)) return {};
  std::vector<int> ranks;
  for (const Nodes& part : below(path_to(node_of(rank)).back())) ranks.push_back(leader_of(part.first));
  for (int other = 0; other < std::ssize(node_of_rank_); ++other) {
    if (other != rank && node_of(other) == node_of(rank)) ranks.push_back(other);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<int> WatchTree::subtree(int rank) const {
  if (!is_leader(rank)) return {rank};
  const Nodes nodes = path_to(node_of(rank)).back();
  std::vector<int> ranks;
  for (int other = 0; other < std::ssize(node_of_rank_); ++other) {
    if (node_of(other) >= nodes.first && node_of(other) < nodes.end) ranks.push_back(other);
  }
  return ranks;
}

/// The first part is the largest, and so on below it.
int WatchTree::depth() const {
  int levels = 0;
  for (auto parts = below({0, nodes_}); !parts.empty(); parts = below(parts.front())) ++levels;
  return levels + (std::ssize(node_of_rank_) > nodes_ ? 1 : 0);
}

std::vector<int> WatchTree::monitors() const {
  if (node_of_rank_.size() == 1) return {0};
  return {0, nodes_ > 1 ? leader_of(1) : 1};
}

std::vector<int> WatchTree::parents(int rank) const {
  std::vector<int> ranks;
  if (const int above = parent(rank); above >= 0) ranks.push_back(above);
  for (const int monitor : monitors()) {
    if (rank != 0 && monitor != rank && !contains(ranks, monitor)) ranks.push_back(monitor);
  }
  return ranks;
}

std::vector<int> WatchTree::reporters(int rank, const IsLost& is_lost) const {
  const auto candidates = monitors();
  const auto judge =
      std::find_if(candidates.begin(), candidates.end(), [&](int monitor) { return !is_lost(monitor); });
  std::vector<int> ranks = children(rank);
  if (judge == candidates.end() || *judge != rank) return ranks;
  const auto add_below = [&](int lost) {
    for (const int child : children(lost)) {
      if (child != rank && !contains(ranks, child)) ranks.push_back(child);
    }
  };
  if (rank != 0) {
    ranks.push_back(0);
    add_below(0);
  }
  // A lost rank may be below one that is not lost.
  for (int other = 1; other < std::ssize(node_of_rank_); ++other) {
    if (other != rank && is_lost(other)) add_below(other);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace llampi::health
