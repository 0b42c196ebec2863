// SPDX-License-Identifier: Apache-2.0
#include "data/best_fit.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace llampi::data {
namespace {

/// The bin of each item; bins are numbered from 0.
std::vector<std::uint32_t> assign_bins(std::span<const std::uint32_t> lengths, std::uint32_t capacity) {
  std::vector<std::uint32_t> longest_first(lengths.size());
  std::iota(longest_first.begin(), longest_first.end(), 0U);
  std::sort(longest_first.begin(), longest_first.end(),
            [&](auto a, auto b) { return lengths[a] != lengths[b] ? lengths[a] > lengths[b] : a < b; });
  std::vector<std::uint32_t> bin_of(lengths.size());
  std::map<std::uint32_t, std::vector<std::uint32_t>> open;  // bins by the space that they have
  std::uint32_t bins = 0;
  for (const auto item : longest_first) {
    const auto length = lengths[item];
    std::uint32_t space = (capacity - length % capacity) % capacity;
    auto best = length <= capacity ? open.lower_bound(length) : open.end();
    if (best == open.end()) {
      bin_of[item] = bins++;
    } else {
      bin_of[item] = best->second.back();
      space = best->first - length;
      best->second.pop_back();
      if (best->second.empty()) open.erase(best);
    }
    if (space > 0) open[space].push_back(bin_of[item]);
  }
  return bin_of;
}

}  // namespace

Packing best_fit(std::span<const std::uint32_t> lengths, std::uint32_t capacity) {
  auto bin_of = assign_bins(lengths, capacity);
  constexpr auto kNone = ~std::uint32_t{0};
  const auto bins = bin_of.empty() ? 0U : *std::max_element(bin_of.begin(), bin_of.end()) + 1;
  std::vector<std::uint32_t> renumbered(bins, kNone);
  std::uint32_t seen = 0;
  Packing packing{std::vector<std::uint32_t>(lengths.size()), std::vector<std::uint32_t>(bins, 0)};
  for (auto& bin : bin_of) {
    if (renumbered[bin] == kNone) renumbered[bin] = seen++;
    bin = renumbered[bin];
    ++packing.ends[bin];
  }
  std::partial_sum(packing.ends.begin(), packing.ends.end(), packing.ends.begin());

  std::vector<std::uint32_t> next(bins, 0);
  if (bins > 0) std::copy(packing.ends.begin(), packing.ends.end() - 1, next.begin() + 1);
  for (const bool longer : {true, false}) {
    for (std::uint32_t item = 0; item < lengths.size(); ++item) {
      if ((lengths[item] > capacity) == longer) packing.items[next[bin_of[item]]++] = item;
    }
  }
  return packing;
}

}  // namespace llampi::data
