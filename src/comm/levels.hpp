// SPDX-License-Identifier: Apache-2.0
// The two levels of a collective: inside a node, and between nodes.
//
// A rank exchanges with the ranks of its node, then with those that have its place on the others. So it has
// (ranks of a node - 1) + (nodes - 1) peers, and of B bytes that are reduced or gathered (nodes - 1) / nodes * B leave each
// node, as in a ring over nodes; directly from rank to rank it would be as many times that as a node has ranks.
#pragma once

#include <memory>
#include <vector>

namespace llampi::comm {

struct Levels {
  /// Ranks of the group on each node, in rising order; the nodes in the order of their lowest ranks. All of one size.
  std::vector<std::vector<int>> nodes;
  int node = 0, place = 0;  ///< this rank is nodes[node][place]

  int node_count() const { return static_cast<int>(nodes.size()); }
  int per_node() const { return static_cast<int>(nodes.front().size()); }
  const std::vector<int>& own_node() const { return nodes[static_cast<std::size_t>(node)]; }
  /// The ranks with this place on each node.
  std::vector<int> same_place(int of_place) const {
    std::vector<int> ranks;
    for (const auto& members : nodes) ranks.push_back(members[static_cast<std::size_t>(of_place)]);
    return ranks;
  }
};

/// `count` of `numbers`, from index `begin` on: `first`, `first` + `step`, ...
struct EvenRun {
  int begin = 0, count = 1;
  int first = 0, step = 0;
};
/// All of them: of ranks that have one place on nodes with consecutive ranks, a single run.
std::vector<EvenRun> even_runs(const std::vector<int>& numbers);

/// Null where one level is all there is (one node, or one rank on each), and where nodes have unlike numbers of ranks: each rank
/// then exchanges with every other.
/// @param node_of_member the node of each member of the group, in the order of its ranks
std::shared_ptr<const Levels> two_levels(const std::vector<int>& node_of_member, int rank);

}  // namespace llampi::comm
