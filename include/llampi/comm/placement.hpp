// SPDX-License-Identifier: Apache-2.0
// What the placement of ranks on nodes means for sums over them.
#pragma once

#include <vector>

namespace llampi::comm {

/// Whether the order of a group's sums depends on which of its ranks share a node. Ranks of a node add first, so it does not
/// where these sums are parts of the tree over all ranks anyway: a power of two of consecutive ranks on each node.
/// @param node_of_member the node of each member of the group, in the order of its ranks
bool sums_follow_placement(const std::vector<int>& node_of_member);

}  // namespace llampi::comm
