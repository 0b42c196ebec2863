// SPDX-License-Identifier: Apache-2.0
// Division of integers that rounds up.
#pragma once

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

}  // namespace llampi
