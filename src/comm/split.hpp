// SPDX-License-Identifier: Apache-2.0
// How an all-reduce is divided over the ranks.
#pragma once

#include <cstdint>

#include "llampi/core/tensor.hpp"

namespace llampi::comm {

/// The first ranks * slice elements are summed slice by slice, each by one rank, and gathered; the rest,
/// fewer than there are ranks or all of a small array, goes to everybody and is summed by everybody.
struct AllReduceSplit {
  std::int64_t slice = 0;  ///< elements per rank
  std::int64_t head = 0;   ///< ranks * slice
  std::int64_t tail = 0;   ///< elements behind the head
};

AllReduceSplit split_all_reduce(std::int64_t elements, int ranks, DType dtype);

}  // namespace llampi::comm
