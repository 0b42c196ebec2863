// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/half.hpp"

#include "llampi/core/tensor.hpp"

namespace llampi {

void widen(DType dtype, const std::uint16_t* bits, std::int64_t elements, float* values) {
  if (dtype == DType::bfloat16) {
    for (std::int64_t i = 0; i < elements; ++i) values[i] = from_bfloat16(bits[i]);
  } else {
    for (std::int64_t i = 0; i < elements; ++i) values[i] = from_float16(bits[i]);
  }
}

void narrow(DType dtype, const float* values, std::int64_t elements, std::uint16_t* bits) {
  if (dtype == DType::bfloat16) {
    for (std::int64_t i = 0; i < elements; ++i) bits[i] = to_bfloat16(values[i]);
  } else {
    for (std::int64_t i = 0; i < elements; ++i) bits[i] = to_float16(values[i]);
  }
}

}  // namespace llampi
