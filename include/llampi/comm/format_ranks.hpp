// SPDX-License-Identifier: Apache-2.0
// Ranks in words.
#pragma once

#include <string>
#include <vector>

namespace llampi::comm {

/// "rank 3 on node7", or "rank 3" where the host is not known. It is inline because libllampi_cuda.so calls it, too.
inline std::string format_rank(int rank, const std::string& host) {
  return "rank " + std::to_string(rank) + (host.empty() ? "" : " on " + host);
}

/// "rank 3", "ranks 0-2, 5"; of many that do not follow each other the first ones: "ranks 0, 2, 4, ... (512 in all)".
std::string format_ranks(const std::vector<int>& ranks);

/// The ranks of each node, by its number: "ranks 0-2; ranks 3-7".
std::string format_placement(const std::vector<int>& node_of_rank);

/// How many ranks each node has, and which: "3 (ranks 0-2), 5 (ranks 3-7)"; of many nodes the first ones and the last one.
std::string format_nodes(const std::vector<int>& node_of_rank);

}  // namespace llampi::comm
