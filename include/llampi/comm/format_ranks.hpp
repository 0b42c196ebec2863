// SPDX-License-Identifier: Apache-2.0
// Ranks in words.
#pragma once

#include <string>
#include <vector>

namespace llampi::comm {

/// "rank 3", "ranks 0-2, 5".
std::string format_ranks(const std::vector<int>& ranks);

/// The ranks of each node, by its number: "ranks 0-2; ranks 3-7".
std::string format_placement(const std::vector<int>& node_of_rank);

/// How many ranks each node has, and which: "3 (ranks 0-2), 5 (ranks 3-7)"; of many nodes the first ones and the last one.
std::string format_nodes(const std::vector<int>& node_of_rank);

}  // namespace llampi::comm
