// SPDX-License-Identifier: Apache-2.0
#include "infer/sampling.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace llampi::test {
namespace {

using infer::draw;

/// As draw() is defined, with everything sorted.
std::int32_t sorted_draw(const std::vector<double>& logits, double temperature, double top_p,
                         double uniform) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](auto a, auto b) { return logits[a] > logits[b]; });
  std::vector<double> until;  // probability of the tokens up to this one, not normalized
  double sum = 0;
  for (const auto token : order)
    until.push_back(sum += std::exp((logits[token] - logits[order[0]]) / temperature));
  const auto nucleus = std::ranges::lower_bound(until, top_p * sum);
  const double kept = nucleus == until.end() ? sum : *nucleus;
  return order[std::ranges::upper_bound(until, uniform * kept) - until.begin()];
}

TEST(Draw, TakesWhatASortedVocabularyGives) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> logit(0, 3);
  std::uniform_real_distribution<double> uniform;
  for (int i = 0; i < 2000; ++i) {
    std::vector<double> logits(300);
    for (auto& value : logits) value = std::round(logit(random) * 4) / 4;  // many are equal
    const double temperature = 0.2 + uniform(random), at = uniform(random);
    const double top_p = i % 3 == 0 ? 1 : uniform(random);
    EXPECT_EQ(draw(logits, temperature, top_p, at), sorted_draw(logits, temperature, top_p, at)) << i;
  }
}

TEST(Draw, TakesTheFirstOfEqualsAtTemperatureZero) { EXPECT_EQ(draw({1, 3, 3, 2}, 0, 1, 0.99), 1); }

TEST(Draw, NeverTakesATokenThatIsForbidden) {
  constexpr double kForbidden = -std::numeric_limits<double>::infinity();
  const double last = std::nextafter(1.0, 0.0);
  EXPECT_EQ(draw({kForbidden, 0.1, 0.7, kForbidden}, 1, 1, last), 1);
  EXPECT_EQ(draw({kForbidden, 0.1, 0.7, kForbidden}, 1, 0.5, last), 2);
}

}  // namespace
}  // namespace llampi::test
