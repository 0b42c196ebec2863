// SPDX-License-Identifier: Apache-2.0
// Bin packing. Private to the library.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace llampi::data {

/// Items in bins, bin after bin.
struct Packing {
  std::vector<std::uint32_t> items;  ///< numbers of the items, in order
  std::vector<std::uint32_t> ends;   ///< of each bin, in `items`
};

/// Best-fit decreasing: from the longest item to the shortest, each goes to the bin with the least space that
/// takes it (D. S. Johnson, "Near-optimal bin packing algorithms", MIT, 1973: at most 11/9 of the fewest
/// possible bins, plus 4). An item longer than `capacity` begins a bin of as many times the capacity as it
/// needs, whose rest others fill. Bins are in the order of their first item, and items within a bin are in
/// order, but for a longer one, which comes first. O(n log n) time, some 20 bytes per item.
Packing best_fit(std::span<const std::uint32_t> lengths, std::uint32_t capacity);

}  // namespace llampi::data
