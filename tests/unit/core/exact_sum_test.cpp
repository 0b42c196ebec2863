// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/exact_sum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace llampi::test {
namespace {

double sum_of(const std::vector<double>& terms) {
  ExactSum sum;
  for (const double term : terms) sum.add(term);
  return sum.value();
}

std::vector<double> terms_of_all_sizes() {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> mantissa(-1, 1);
  std::vector<double> terms;
  for (int i = 0; i < 500; ++i) terms.push_back(std::ldexp(mantissa(random), i % 100 - 20));
  return terms;
}

TEST(ExactSum, DoesNotDependOnTheOrder) {
  std::vector<double> terms = terms_of_all_sizes();
  const double expected = sum_of(terms);
  std::mt19937_64 random(6);
  for (int i = 0; i < 20; ++i) {
    std::ranges::shuffle(terms, random);
    ASSERT_EQ(sum_of(terms), expected);
  }
}

TEST(ExactSum, LosesNothing) {
  EXPECT_EQ(sum_of({0x1p80, 0x1p-60, -0x1p80}), 0x1p-60);
  EXPECT_EQ(sum_of({1e20, 1, -1e20, 0.5}), 1.5);
  EXPECT_EQ(sum_of({-3.25, -4.5}), -7.75);
  EXPECT_EQ(sum_of({0.1}), 0.1);
  EXPECT_EQ(sum_of({-12345.678}), -12345.678);
  EXPECT_EQ(sum_of({0x1p-65}), 0) << "below the grid";
  EXPECT_EQ(sum_of({}), 0);
}

TEST(ExactSum, PartsAreAddedByTheirWords) {
  const std::vector<double> terms = terms_of_all_sizes();
  ExactSum whole, first, second;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    whole.add(terms[i]);
    (i % 3 == 0 ? first : second).add(terms[i]);
  }
  for (std::size_t i = 0; i < first.words().size(); ++i) first.words()[i] += second.words()[i];
  EXPECT_EQ(first.value(), whole.value());
}

TEST(ExactSum, IsNoNumberIfATermIsNone) {
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL, 0x1p95}) {
    EXPECT_TRUE(std::isnan(sum_of({1, bad, 2})));
    EXPECT_TRUE(std::isnan(sum_of({bad, -bad}))) << "two of them do not cancel";
  }
  EXPECT_EQ(sum_of({0x1p94, -0x1p94, 1}), 1);
}

}  // namespace
}  // namespace llampi::test
