// SPDX-License-Identifier: Apache-2.0
// Which numbers of a matrix in 8 bits share a scale, and how scales lie in memory: as cuBLASLt reads them
// (CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, _VEC128_32F, _BLK128x128_32F).
#pragma once

#include <array>
#include <cstdint>

#include "llampi/core/error.hpp"
#include "llampi/core/tensor.hpp"

namespace llampi::device {

/// Of a matrix [R, C] that a product reads row by row.
enum class Fp8Scaling : std::uint8_t {
  /// One scale: float32 [4, 1], {2^-e, 2^e, 0, 0}. Of 16 bytes, so that those of several matrices can stand one after another:
  /// cuBLASLt 12.9 to 13.1 refuses scales whose address is not a multiple of that.
  tensor,
  tiles,   ///< one for each tile of 1 x 128: float32 [C / 128, R], 2^-e
  blocks,  ///< one for each block of 128 x 128: float32 [R / 128, C / 128 rounded up to a multiple of 4], 2^-e
};

/// Numbers along each side of a block, and of a tile. Sides of matrices with such scales are multiples of it.
inline constexpr std::int64_t kFp8Block = 128;

struct Fp8ScaleShape {
  std::int64_t rows, cols;
  std::int64_t elements() const { return rows * cols; }
  bool operator==(const Fp8ScaleShape&) const = default;
};
/// Of the scales of a matrix [rows, cols].
constexpr Fp8ScaleShape fp8_scale_shape(Fp8Scaling scaling, std::int64_t rows, std::int64_t cols) {
  if (scaling == Fp8Scaling::tiles) return {cols / kFp8Block, rows};
  if (scaling == Fp8Scaling::blocks) return {rows / kFp8Block, (cols / kFp8Block + 3) / 4 * 4};
  return {4, 1};
}

/// The scaling of a matrix [rows, cols], derived from the shape of its scales: each scaling has a different shape.
/// @throws Error if they are none
inline Fp8Scaling fp8_scaling_of(const Tensor& scales, std::int64_t rows, std::int64_t cols) {
  for (const auto scaling : {Fp8Scaling::tensor, Fp8Scaling::tiles, Fp8Scaling::blocks}) {
    const bool whole = rows % kFp8Block == 0 && cols % kFp8Block == 0;
    if (scaling != Fp8Scaling::tensor && !whole) continue;
    if (fp8_scale_shape(scaling, rows, cols) == Fp8ScaleShape{scales.rows, scales.cols}) return scaling;
  }
  throw Error(fmt::format("internal error: [{}, {}] scales of a matrix [{}, {}] in 8 bits", scales.rows,
                          scales.cols, rows, cols));
}

}  // namespace llampi::device
