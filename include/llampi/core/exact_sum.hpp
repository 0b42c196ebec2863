// SPDX-License-Identifier: Apache-2.0
// Sums of float64 numbers that do not depend on the order of their terms, nor on who adds them.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace llampi {

/// Each term is cut to a multiple of 2^-64, and the sum is exact: integers on a grid, as a superaccumulator has them
/// (Kulisch). Those of several ranks are added by adding words(). Up to 2^31 terms, each less than 2^95; the sum is NaN if
/// one is not, or is infinite.
class ExactSum {
 public:
  void add(double term) {
    if (!(std::abs(term) < kLimit)) {
      ++words_.back();
      return;
    }
    for (int i = 0; i < kDigits; ++i) {
      const double digit = std::trunc(term / weight(i));  // exact: weights are powers of two
      words_[static_cast<std::size_t>(i)] += static_cast<std::int64_t>(digit);
      term -= digit * weight(i);
    }
  }

  double value() const {
    if (words_.back() != 0) return std::numeric_limits<double>::quiet_NaN();
    double sum = 0;
    for (int i = kDigits; i-- > 0;)
      sum += static_cast<double>(words_[static_cast<std::size_t>(i)]) * weight(i);
    return sum;
  }

  /// The digits of the sum, the highest first, and how many terms were too large or no numbers.
  std::span<std::int64_t> words() { return words_; }

 private:
  static constexpr int kDigits = 5;
  static constexpr double kLimit = 0x1p95;
  static double weight(int digit) { return std::ldexp(1.0, 64 - 32 * digit); }

  std::array<std::int64_t, kDigits + 1> words_{};
};

}  // namespace llampi
