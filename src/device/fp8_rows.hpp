// SPDX-License-Identifier: Apache-2.0
// Products in 8 bits on devices that compute in host memory: what an operation does to some of its rows.
#pragma once

#include <cstdint>

#include "llampi/device/operations.hpp"

namespace llampi::device {

/// The bits that op::Fp8Maximum finds among elements [begin, end) of a float32, bfloat16 or float64 tensor.
std::int32_t fp8_maximum_bits(const Tensor& source, std::int64_t begin, std::int64_t end);

/// The checks of op::Fp8Cast, what it writes beside the elements, and the e of its scale.
int begin_fp8_cast(const op::Fp8Cast& o);
/// Its elements of rows [begin, end). Returns how many were infinite.
std::int64_t fp8_cast_rows(const op::Fp8Cast& o, int scale_exponent, std::int64_t begin, std::int64_t end);

/// op::Fp8Scales
void fp8_scales(const op::Fp8Scales& o);

/// Rows [begin, end) of what is transposed.
void fp8_transpose_rows(const op::Fp8Transpose& o, std::int64_t begin, std::int64_t end);

/// The checks of op::Fp8Product.
void check_fp8_product(const op::Fp8Product& o);
/// values[i - begin] = factor times element i of an 8-bit tensor.
template <class T>
void fp8_widen(const Tensor& source, std::int64_t begin, std::int64_t end, T factor, T* values);

}  // namespace llampi::device
