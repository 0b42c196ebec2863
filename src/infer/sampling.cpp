// SPDX-License-Identifier: Apache-2.0
#include "infer/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace llampi::infer {

std::int32_t draw(const std::vector<double>& logits, double temperature, double top_p, double uniform) {
  const auto most_likely = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return static_cast<std::int32_t>(most_likely - logits.begin());

  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  std::vector<double> weights(order.size());
  double total = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    weights[i] = std::exp((logits[order[i]] - *most_likely) / temperature);
    total += weights[i];
  }
  double kept = 0;
  std::size_t count = 0;
  while (count < order.size() && (count == 0 || kept < top_p * total)) kept += weights[count++];

  double target = uniform * kept;
  for (std::size_t i = 0; i < count; ++i) {
    target -= weights[i];
    if (target < 0) return order[i];
  }
  return order[count - 1];
}

}  // namespace llampi::infer
