// SPDX-License-Identifier: Apache-2.0
// Which rank reports to which: a tree of ranks, so that each exchanges heartbeats with few others, however many there are.
#pragma once

#include <functional>
#include <vector>

namespace llampi::health {

bool contains(const std::vector<int>& ranks, int rank);

/// Rank 0 is the root. The first rank of each node, its leader, has the other ranks of its node below it, and at most
/// `fan_out` leaders of other nodes. Below a leader are whole nodes with consecutive numbers, in subtrees of about equal
/// size. Two ranks are monitors, which judge what they hear of all: the root and, for when that is lost, a deputy on another node
/// if there is one, which is a child of the root.
///
/// When a rank is lost, those below it turn to the monitors, which know whom it had below it: reporters().
class WatchTree {
 public:
  static constexpr int kFanOut = 8;
  using IsLost = std::function<bool(int rank)>;

  /// @param node_of_rank as in comm::Topology; outlives this
  explicit WatchTree(const std::vector<int>& node_of_rank, int fan_out = kFanOut);

  int parent(int rank) const;                 ///< -1: of the root
  std::vector<int> children(int rank) const;  ///< in ascending order
  std::vector<int> subtree(int rank) const;   ///< the rank and all below it, in ascending order
  int depth() const;                          ///< the most steps from any rank to the root

  std::vector<int> monitors() const;  ///< the root and, with more than one rank, the deputy
  /// Parent, root and deputy, in this order: `rank` reports to the first of them that is not lost.
  std::vector<int> parents(int rank) const;
  /// The ranks that report to `rank`: its children and, if it is the first monitor that is not lost, also the children of lost
  /// ranks. So every rank that is not lost reaches that monitor, directly or through others, and every lost rank is missed by its
  /// parent or by that monitor.
  std::vector<int> reporters(int rank, const IsLost& is_lost) const;
  int ranks() const { return static_cast<int>(node_of_rank_.size()); }

 private:
  /// Nodes: the leader of `first`, and the others below it.
  struct Nodes {
    int first = 0, end = 0;
    bool operator==(const Nodes&) const = default;
  };
  int node_of(int rank) const { return node_of_rank_[static_cast<std::size_t>(rank)]; }
  int leader_of(int node) const;
  bool is_leader(int rank) const { return leader_of(node_of(rank)) == rank; }
  std::vector<Nodes> below(const Nodes& nodes) const;
  /// From the root's to the one of which `node` is the first.
  std::vector<Nodes> path_to(int node) const;

  const std::vector<int>& node_of_rank_;
  int fan_out_;
  int nodes_ = 0;
};

}  // namespace llampi::health
