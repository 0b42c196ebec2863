// SPDX-License-Identifier: Apache-2.0
#include "llampi/comm/format_ranks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "llampi/comm/placement.hpp"

namespace llampi::comm {

std::string format_ranks(const std::vector<int>& ranks) {
  constexpr int kMostRanges = 32;
  std::string text;
  int ranges = 0;
  for (std::size_t i = 0; i < ranks.size();) {
    if (++ranges > kMostRanges) {
      text += fmt::format(", ... ({} in all)", ranks.size());
      break;
    }
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += text.empty() ? "" : ", ";
    text += last > i ? fmt::format("{}-{}", ranks[i], ranks[last]) : fmt::format("{}", ranks[i]);
    i = last + 1;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::string format_placement(const std::vector<int>& node_of_rank) {
  std::vector<std::string> parts;
  for (const auto& ranks : members_by_node(node_of_rank)) parts.push_back(format_ranks(ranks));
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string format_nodes(const std::vector<int>& node_of_rank) {
  constexpr std::size_t kShown = 6;
  std::vector<std::string> parts;
  for (const auto& ranks : members_by_node(node_of_rank))
    parts.push_back(fmt::format("{} ({})", ranks.size(), format_ranks(ranks)));
  if (parts.size() <= kShown) return fmt::format("{}", fmt::join(parts, ", "));
  return fmt::format("{}, ... {} on the last of {} nodes",
                     fmt::join(parts.begin(), parts.begin() + kShown - 1, ", "), parts.back(), parts.size());
}

}  // namespace llampi::comm
