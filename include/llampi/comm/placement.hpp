// SPDX-License-Identifier: Apache-2.0
// What the placement of ranks on nodes means for sums over them.
#pragma once

#include <vector>

namespace llampi::comm {

/// The node of each member of a group, in the order of its ranks.
/// @param members ranks of the world
std::vector<int> nodes_of_members(const std::vector<int>& members, const std::vector<int>& node_of_rank);

/// On each node the members of a group, in rising order; the nodes in the order of their lowest members.
/// @param node_of_member the node of each member of the group, in the order of its ranks
std::vector<std::vector<int>> members_by_node(const std::vector<int>& node_of_member);

/// Whether a group's sums are formed inside each node first, and then between nodes: it has several nodes, and several ranks
/// on one of them. What nodes send each other is in the dtype that is communicated.
/// @param node_of_member as above
bool sums_inside_nodes(const std::vector<int>& node_of_member);

/// Whether the order of a group's sums depends on which of its ranks share a node. Ranks of a node add first, so it does not
/// where these sums, and those of several nodes, are parts of the tree over all ranks anyway: with the same power of two of consecutive ranks
/// on each node, or with 4 and 2.
/// @param node_of_member the node of each member of the group, in the order of its ranks
bool sums_follow_placement(const std::vector<int>& node_of_member);

}  // namespace llampi::comm
