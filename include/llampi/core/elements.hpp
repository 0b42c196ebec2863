// SPDX-License-Identifier: Apache-2.0
// Elements of floating-point dtypes in host memory, from and to numbers of the host.
#pragma once

#include <cstdint>

#include "llampi/core/float8.hpp"
#include "llampi/core/half.hpp"
#include "llampi/core/tensor.hpp"

namespace llampi {

constexpr bool is_half(DType dtype) { return dtype == DType::bfloat16 || dtype == DType::float16; }

/// Calls `work(Element{}, narrow, widen)`: Element is the type that holds an element of `dtype`, as bits where C++ has no such
/// numbers; `narrow` rounds a double, by way of float32 if it is narrower, to nearest even; `widen` gives float, or double of float64.
/// @throws Error if it is not a floating-point dtype
template <class Work>
void with_elements(DType dtype, const Work& work) {
  const auto same = [](auto x) { return x; };
  switch (dtype) {
    case DType::float64:
      return work(double{}, same, same);
    case DType::float32:
      return work(
          float{}, [](double x) { return static_cast<float>(x); }, same);
    case DType::bfloat16:
      return work(
          std::uint16_t{}, [](double x) { return to_bfloat16(static_cast<float>(x)); },
          [](std::uint16_t bits) { return from_bfloat16(bits); });
    case DType::float16:
      return work(
          std::uint16_t{}, [](double x) { return to_float16(static_cast<float>(x)); },
          [](std::uint16_t bits) { return from_float16(bits); });
    case DType::float8_e4m3fn:
    case DType::float8_e5m2:
      return work(
          std::uint8_t{}, [=](double x) { return to_float8(float8_format(dtype), static_cast<float>(x)); },
          [=](std::uint8_t bits) { return from_float8(float8_format(dtype), bits); });
    default:
      throw Error(fmt::format("internal error: {} is not a floating-point dtype", to_string(dtype)));
  }
}

}  // namespace llampi
