// SPDX-License-Identifier: Apache-2.0
// Division of integers that rounds up, and divisors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace llampi {

/// a / b, rounded up. @param a at least 0 @param b above 0
template <class A, class B>
constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

/// The smallest multiple that is not less. @param value at least 0 @param multiple above 0
template <class A, class B>
constexpr auto round_up(A value, B multiple) {
  return ceil_div(value, multiple) * multiple;
}

/// All of them, the smallest first. Takes at most as many steps as the square root. @param number above 0
inline std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> all = {1};
  for (std::int64_t factor = 2, rest = number; rest > 1; ++factor) {
    if (factor > rest / factor) factor = rest;  // which is a prime number
    const std::size_t without = all.size();
    for (; rest % factor == 0; rest /= factor) {
      for (std::size_t i = 0; i < without; ++i) all.push_back(all[all.size() - without] * factor);
    }
  }
  std::ranges::sort(all);
  return all;
}

}  // namespace llampi
