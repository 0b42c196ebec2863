// SPDX-License-Identifier: Apache-2.0
#include "llampi/device/merge_low_rank.hpp"

#include <algorithm>
#include <vector>

namespace llampi::device {

void merge_low_rank(const LowRankMerge& merge) {
  const auto end = merge.begin + std::ssize(merge.weight);
  const auto rank = std::ssize(merge.a) / merge.cols;
  std::vector<float> product(static_cast<std::size_t>(merge.cols));
  for (std::int64_t at = merge.begin; at < end;) {
    const std::int64_t row = at / merge.cols, first = at % merge.cols,
                       count = std::min(merge.cols - first, end - at);
    std::fill_n(product.begin(), count, 0.0F);
    for (std::int64_t k = 0; k < rank; ++k) {
      const float factor = merge.b[static_cast<std::size_t>(row * rank + k)];
      const float* a = merge.a.data() + k * merge.cols + first;
      for (std::int64_t i = 0; i < count; ++i) product[static_cast<std::size_t>(i)] += factor * a[i];
    }
    float* weight = merge.weight.data() + (at - merge.begin);
    for (std::int64_t i = 0; i < count; ++i)
      weight[i] += static_cast<float>(merge.scale) * product[static_cast<std::size_t>(i)];
    at += count;
  }
}

}  // namespace llampi::device
