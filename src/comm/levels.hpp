// SPDX-License-Identifier: Apache-2.0
// The two levels of a collective: inside a node, and between nodes.
//
// On each node, one rank sums the node's contributions to a part and sends the sum to the part's owner; in a gather it receives the
// part and passes it on. An owner does that for its own part on its own node; the parts of other nodes are divided among the ranks of a node.
// Where all nodes have n ranks, that of the owner with place p on its node goes through place p on every node, and a rank has
// (n - 1) + (nodes - 1) peers. Of B bytes that are reduced or gathered, a node sends out what a ring over nodes would: with equally many
// ranks (nodes - 1) / nodes * B; directly from rank to rank it would be n times that.
#pragma once

#include <memory>
#include <vector>

namespace llampi::comm {

struct Levels {
  /// Ranks of the group on each node, in rising order; the nodes in the order of their lowest ranks.
  std::vector<std::vector<int>> nodes;
  int node = 0, place = 0;  ///< this rank is nodes[node][place]
  /// For each place on this node, the ranks whose parts it sums and passes on, by node. At most ceil(ranks / ranks of this node).
  std::vector<std::vector<int>> parts_of_place;
  /// On each node: the rank through which this rank's part goes. On its own node that is this rank.
  std::vector<int> through;

  int node_count() const { return static_cast<int>(nodes.size()); }
  const std::vector<int>& own_node() const { return nodes[static_cast<std::size_t>(node)]; }
  int places() const { return static_cast<int>(own_node().size()); }
  /// The ranks whose parts go through this one.
  const std::vector<int>& own_parts() const { return parts_of_place[static_cast<std::size_t>(place)]; }

  /// A reduction receives the parts from each rank of this node. Its workspace holds as many parts as the group has ranks, which
  /// allows so many parts for each. Uneven nodes may need a second round; even ones need one. All ranks do the same number of rounds.
  int parts_per_round = 1, rounds = 1;
  /// What goes through a place in one round.
  std::vector<int> parts_of(int of_place, int round) const;
};

/// `count` of `numbers`, from index `begin` on: `first`, `first` + `step`, ...
struct EvenRun {
  int begin = 0, count = 1;
  int first = 0, step = 0;
};
/// All of them: of ranks that have one place on nodes with consecutive ranks, a single run.
std::vector<EvenRun> even_runs(const std::vector<int>& numbers);

/// Null where one level is all there is: one node, or one rank on each.
/// @param node_of_member the node of each member of the group, in the order of its ranks
std::shared_ptr<const Levels> two_levels(const std::vector<int>& node_of_member, int rank);

}  // namespace llampi::comm
