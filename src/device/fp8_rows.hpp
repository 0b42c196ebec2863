// SPDX-License-Identifier: Apache-2.0
// Products in 8 bits on devices that compute in host memory: what an operation does to some of its rows.
#pragma once

#include <cstdint>

#include "llampi/device/fp8_scaling.hpp"
#include "llampi/device/operations.hpp"

namespace llampi::device {

/// The bits that op::Fp8Maximum finds among elements [begin, end) of a float32, bfloat16 or float64 tensor.
std::int32_t fp8_maximum_bits(const Tensor& source, std::int64_t begin, std::int64_t end);

/// The checks of op::Fp8Cast, what it writes beside the elements, and the e of its scale.
int begin_fp8_cast(const op::Fp8Cast& o);
/// Its elements of the rows from `first` on that `rows` has. Returns how many were infinite.
std::int64_t fp8_cast_rows(const op::Fp8Cast& o, int scale_exponent, const Tensor& rows, std::int64_t first);

/// op::Fp8Scales
void fp8_scales(const op::Fp8Scales& o);

/// Rows [begin, end) of what is transposed.
void fp8_transpose_rows(const op::Fp8Transpose& o, std::int64_t begin, std::int64_t end);

/// The rows of blocks that op::Fp8BlockMaximum and op::Fp8BlockCast have a part of: its checks, and their number.
std::int64_t fp8_block_rows(const op::Fp8BlockMaximum& o);
std::int64_t fp8_block_rows(const op::Fp8BlockCast& o);
/// What they do to some of them, counted from the first. Returns how many numbers were infinite.
void fp8_block_maximum(const op::Fp8BlockMaximum& o, std::int64_t begin, std::int64_t end);
std::int64_t fp8_block_cast(const op::Fp8BlockCast& o, std::int64_t begin, std::int64_t end);
bool is_zero_in_blocks(const op::Fp8BlockCast& o);

/// op::Fp8BlockScales
void fp8_block_scales(const op::Fp8BlockScales& o);

/// The checks of op::Fp8TileCast.
void check_fp8_tile_cast(const op::Fp8TileCast& o);
struct Fp8TileCastPart {
  std::int32_t maximum = 0;
  std::int64_t saturated = 0;
};
/// What it does to rows of tiles [begin, end), of 128 rows each.
Fp8TileCastPart fp8_tile_cast(const op::Fp8TileCast& o, std::int64_t begin, std::int64_t end);
/// What it writes beside: the maximum, and what is counted.
void end_fp8_tile_cast(const op::Fp8TileCast& o, const Fp8TileCastPart& all);

/// values[i] = row `begin` + i / K, column i % K, of a matrix [.., K] in 8 bits, as it was before it was scaled.
template <class T>
void fp8_widen(const Tensor& source, const Tensor& scales, std::int64_t begin, std::int64_t end, T* values);

}  // namespace llampi::device
