// SPDX-License-Identifier: Apache-2.0
// Numbers of 8 bits, and matrices of them that are turned in shared memory.
#pragma once

#include "device/cuda/vectors.cuh"
#include "llampi/core/float8.hpp"

namespace llampi::device::cuda {

/// The bits of to_float8() of both, `low` in the lower byte.
template <DType kDType>
__device__ inline std::uint32_t float8_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint16_t pair;
  if constexpr (kDType == DType::float8_e5m2) {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  }
  // All else has its sign already, but NaN comes without one.
  return pair | (__float_as_uint(low) >> 24 & 0x80U) | (__float_as_uint(high) >> 16 & 0x8000U);
#else
  constexpr Float8Format kFormat = float8_format(kDType);
  return to_float8(kFormat, low) | std::uint32_t{to_float8(kFormat, high)} << 8;
#endif
}

/// rows[i] holds four bytes of row i; then byte i of each row is in rows[i].
__device__ inline void transpose_bytes(std::uint32_t (&rows)[4]) {
  const std::uint32_t a = __byte_perm(rows[0], rows[1], 0x5140), b = __byte_perm(rows[0], rows[1], 0x7362);
  const std::uint32_t c = __byte_perm(rows[2], rows[3], 0x5140), d = __byte_perm(rows[2], rows[3], 0x7362);
  rows[0] = __byte_perm(a, c, 0x5410);
  rows[1] = __byte_perm(a, c, 0x7632);
  rows[2] = __byte_perm(b, d, 0x5410);
  rows[3] = __byte_perm(b, d, 0x7632);
}

/// A square of bytes that a block of 256 threads turns. Thread t has rows 4 (t / 8), ..., + 3, and of them kSpan columns
/// side by side from kSpan (t % 8) on, and then some 8 kSpan further. So a warp reads pieces of rows that are whole lines
/// of memory, writes whole lines of what is turned, and meets no bank of shared memory twice at a time: the pieces of
/// 16 bytes of a column are stored in an order that depends on which thread has the column.
template <int kSpan>
struct ByteTile {
  static constexpr int kSide = 128, kThreads = 256;
  static constexpr int kPieces = kSide / 16;  ///< of 16 bytes, of a column
  using Memory = uint4[kSide * kPieces];

  static __device__ int row() { return static_cast<int>(threadIdx.x) / 8 * 4; }
  static __device__ int column() { return static_cast<int>(threadIdx.x) % 8 * kSpan; }

  /// Four columns from `column` on of the thread's four rows; rows[i] has those of row i.
  static __device__ void put(Memory& memory, int column, std::uint32_t (&rows)[4]) {
    transpose_bytes(rows);
    auto* const words = reinterpret_cast<std::uint32_t*>(memory);
#pragma unroll
    for (int i = 0; i < 4; ++i) words[piece(column + i, row() / 16) * 4 + row() / 4 % 4] = rows[i];
  }

  /// Writes the tile whose first element is [first_row, first_column] of a matrix [rows, cols] to its place in
  /// transposed [cols, rows], or where column c is row row_of(c) of that; with kVectors rows and the address are
  /// multiples of 16.
  template <bool kVectors>
  static __device__ void store(const Memory& memory, std::int64_t first_row, std::int64_t first_column,
                               std::int64_t rows, std::int64_t cols, std::uint8_t* transposed) {
    store<kVectors>(memory, first_row, first_column, rows, cols, transposed,
                    [](std::int64_t c) { return c; });
  }
  template <bool kVectors, class RowOf>
  static __device__ void store(const Memory& memory, std::int64_t first_row, std::int64_t first_column,
                               std::int64_t rows, std::int64_t cols, std::uint8_t* transposed,
                               const RowOf& row_of) {
#pragma unroll
    for (int i = 0; i < kSide * kPieces / kThreads; ++i) {
      const int at = i * kThreads + static_cast<int>(threadIdx.x);
      const std::int64_t c = first_column + at / kPieces, r = first_row + at % kPieces * 16;
      if (c >= cols || r >= rows) continue;
      const uint4 unit = memory[piece(at / kPieces, at % kPieces)];
      std::uint8_t* const to = transposed + row_of(c) * rows + r;
      if constexpr (kVectors) {
        store_unit(reinterpret_cast<uint4*>(to), unit);
      } else {
        const std::uint32_t words[] = {unit.x, unit.y, unit.z, unit.w};
        for (int j = 0; j < 16 && r + j < rows; ++j)
          to[j] = static_cast<std::uint8_t>(words[j / 4] >> (8 * (j % 4)));
      }
    }
  }

 private:
  /// Where the piece `number` of a column lies.
  static __device__ int piece(int column, int number) {
    return column * kPieces + (number ^ (column / kSpan % kPieces));
  }
};

}  // namespace llampi::device::cuda
