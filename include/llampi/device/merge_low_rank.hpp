// SPDX-License-Identifier: Apache-2.0
// Merging a low-rank adapter into the weights of its linear map, in host memory.
#pragma once

#include <cstdint>
#include <span>

namespace llampi::device {

/// Part of a weight matrix: its elements from `begin` on, row by row.
struct LowRankMerge {
  std::span<float> weight;
  std::int64_t begin = 0;    ///< number of the first element, from the beginning of the first row of `b`
  std::int64_t cols = 0;     ///< of the matrix
  std::span<const float> a;  ///< [r, cols]
  std::span<const float> b;  ///< [rows, r]
  double scale = 1;
};
/// weight += scale b a: the product is summed in float32, in the order of the rows of `a`, and added once.
void merge_low_rank(const LowRankMerge& merge);

}  // namespace llampi::device
