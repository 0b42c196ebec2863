// SPDX-License-Identifier: Apache-2.0
#include "llampi/comm/format_ranks.hpp"

#include <fmt/format.h>

#include <map>

namespace llampi::comm {

std::string format_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += text.empty() ? "" : ", ";
    text += last > i ? fmt::format("{}-{}", ranks[i], ranks[last]) : fmt::format("{}", ranks[i]);
    i = last + 1;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::string format_placement(const std::vector<int>& node_of_rank) {
  std::map<int, std::vector<int>> nodes;
  for (int rank = 0; rank < static_cast<int>(node_of_rank.size()); ++rank)
    nodes[node_of_rank[static_cast<std::size_t>(rank)]].push_back(rank);
  std::vector<std::string> parts;
  for (const auto& [node, ranks] : nodes) parts.push_back(format_ranks(ranks));
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace llampi::comm
