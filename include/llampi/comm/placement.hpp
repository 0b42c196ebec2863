// SPDX-License-Identifier: Apache-2.0
// What the placement of ranks on nodes means for sums over them.
#pragma once

#include <vector>

namespace llampi::comm {

/// The node of each member of a group, in the order of its ranks.
/// @param members ranks of the world
std::vector<int> nodes_of_members(const std::vector<int>& members, const std::vector<int>& node_of_rank);

/// Whether the order of a group's sums depends on which of its ranks share a node. Ranks of a node add first, so it does not
/// where these sums are parts of the tree over all ranks anyway: a power of two of consecutive ranks on each node.
/// @param node_of_member the node of each member of the group, in the order of its ranks
bool sums_follow_placement(const std::vector<int>& node_of_member);

}  // namespace llampi::comm
