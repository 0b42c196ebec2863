// SPDX-License-Identifier: Apache-2.0
// The order in which numbers of ranks, and of micro-batches, are added.
#pragma once

#include <bit>
#include <cstdint>

namespace llampi::comm {

/// A sum of `count` > 1 terms is that of the first so many, plus that of the others: a binary tree whose left part is full,
/// as large as it can be. So 2 + 2 for four terms, 4 + (2 + 1) for seven; and the sum of any 2^k terms that begin at a
/// multiple of 2^k is a part of it.
constexpr std::int64_t tree_left(std::int64_t count) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(count - 1)));
}

}  // namespace llampi::comm
