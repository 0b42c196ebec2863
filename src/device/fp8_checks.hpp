// SPDX-License-Identifier: Apache-2.0
// What every device refuses to cast to 8 bits, and to multiply in them.
#pragma once

#include "llampi/core/float8.hpp"
#include "llampi/device/fp8_scaling.hpp"
#include "llampi/device/operations.hpp"

namespace llampi::device {

inline void check_is_float8(const Tensor& tensor, std::int64_t rows, std::int64_t cols, const char* name) {
  if (!is_float8(tensor.dtype) || tensor.rows != rows || tensor.cols != cols)
    throw Error(fmt::format("internal error: {} is {} [{}, {}], not [{}, {}] in 8 bits", name,
                            to_string(tensor.dtype), tensor.rows, tensor.cols, rows, cols));
}

/// What a cast writes: the matrix, its transpose, or both, in this dtype.
inline DType fp8_cast_dtype(const Tensor& values, const Tensor& transposed) {
  require(values || transposed, "a cast to nothing");
  require(!values || !transposed || values.dtype == transposed.dtype, "a cast to two dtypes");
  return values ? values.dtype : transposed.dtype;
}

inline void check_has_tiles(const Tensor& source) {
  require(source.rows % kFp8Block == 0 && source.cols % kFp8Block == 0,
          "sides of a matrix in tiles are multiples of 128");
}

inline void check_fp8_product(const op::Fp8Product& o) {
  const std::int64_t m = o.y.rows, n = o.y.cols, k = o.a.cols;
  check_is_float8(o.a, m, k, "a");
  check_is_float8(o.b, n, k, "b");
  require(m % 16 == 0 && n % 16 == 0 && k % 16 == 0, "the sides of a product in 8 bits are multiples of 16");
  require(o.a.dtype != DType::float8_e5m2 || o.b.dtype != DType::float8_e5m2,
          "there is no product of float8_e5m2 and float8_e5m2");
  require(!o.residual || o.accumulate_y == Accumulate::no, "a product adds to one matrix only");
  const Fp8Scaling a = fp8_scaling_of(o.a_scale, m, k), b = fp8_scaling_of(o.b_scale, n, k);
  require((a == Fp8Scaling::tensor) == (b == Fp8Scaling::tensor), "one of two operands has scales of blocks");
  require(a != Fp8Scaling::blocks || b != Fp8Scaling::blocks, "there is no product of blocks and blocks");
  require(a == Fp8Scaling::tensor || !o.fast_accumulation, "fast accumulation with scales of blocks");
}

}  // namespace llampi::device
