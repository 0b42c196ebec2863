// SPDX-License-Identifier: Apache-2.0
#include "infer/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace llampi::infer {
namespace {

/// The tokens from the most likely to the least, of equals the first. Sorted only as far as they are asked for: mostly
/// few are, and sorting a vocabulary of 150,000 takes longer than a token of a small model.
class MostLikelyFirst {
  auto is_less_likely() const {
    return [&logits = logits_](std::int32_t a, std::int32_t b) {
      return logits[a] < logits[b] || (logits[a] == logits[b] && a > b);
    };
  }

 public:
  explicit MostLikelyFirst(const std::vector<double>& logits) : logits_(logits), heap_(logits.size()) {
    std::iota(heap_.begin(), heap_.end(), 0);
    std::ranges::make_heap(heap_, is_less_likely());
  }
  /// @param rank below the number of logits
  std::int32_t operator[](std::size_t rank) {
    while (sorted_.size() <= rank) {
      std::ranges::pop_heap(heap_, is_less_likely());
      sorted_.push_back(heap_.back());
      heap_.pop_back();
    }
    return sorted_[rank];
  }

 private:
  const std::vector<double>& logits_;
  std::vector<std::int32_t> heap_, sorted_;
};

}  // namespace

std::int32_t draw(const std::vector<double>& logits, double temperature, double top_p, double uniform) {
  const auto most_likely = std::ranges::max_element(logits);
  if (temperature <= 0) return static_cast<std::int32_t>(most_likely - logits.begin());

  const auto weight_of = [&](double logit) { return std::exp((logit - *most_likely) / temperature); };
  double total = 0;
  for (const double logit : logits) total += weight_of(logit);

  MostLikelyFirst order(logits);
  std::size_t count = logits.size();
  double kept = total;
  if (top_p < 1) {
    kept = 0;
    for (count = 0; count < logits.size() && (count == 0 || kept < top_p * total); ++count)
      kept += weight_of(logits[order[count]]);
  }
  double target = uniform * kept;
  std::int32_t chosen = order[0];
  for (std::size_t i = 0; i < count && target >= 0; ++i) {
    const double weight = weight_of(logits[order[i]]);
    if (weight == 0) break;  // the sums are rounded, and may leave a little
    chosen = order[i];
    target -= weight;
  }
  return chosen;
}

}  // namespace llampi::infer
