// SPDX-License-Identifier: Apache-2.0
// Tiles in shared memory and what a warp computes with them on tensor cores.
//
// A warp has rows of the left operand: kRowTiles times 16. Matrices in registers are arrays of fragments
// (mma.cuh): as accumulators lie, float c[kRowTiles][columns / 8][4]; as left operand,
// std::uint32_t a[kRowTiles][columns / 16][4].
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "device/cuda/attention.cuh"
#include "device/cuda/vectors.cuh"

namespace llampi::device::cuda {

/// Index of the warp in its block. By the shuffle the compiler knows that it is one for all lanes.
__device__ inline int warp_index() {
  return __shfl_sync(0xffffffffU, static_cast<int>(recomputed(threadIdx.x) / 32), 0);
}

/// Place of the calling thread in its warp and in fragments; cheap, so better made anew than held in
/// registers.
struct Lane {
  unsigned thread = recomputed(threadIdx.x);
  int lane = static_cast<int>(thread % 32);
  int row = static_cast<int>(thread % 32 / 4);    ///< g: row of accumulators; the lower half has row + 8
  int column = static_cast<int>(thread % 4 * 2);  ///< 2 t: first of its two columns in each eight
};

/// Rows of kDim elements in shared memory. Chunks of 16 bytes are permuted within a row so that eight rows at
/// one chunk, which ldmatrix reads at once, lie in different banks.
template <class T, int kDim>
struct Tile {
  static constexpr int kChunks = kDim / 8;
  static constexpr int kAcross = kChunks < 8 ? kChunks : 8;  ///< chunks of a row in 128 bytes, all banks
  T* data;                                                   ///< aligned to 128 bytes

  __device__ T* chunk(unsigned row, unsigned index) const {
    return data + (row * kDim + (index ^ (row / (8 / kAcross) % kAcross)) * 8);
  }
  /// From the address of chunk (row, i) to that of chunk (row + rows, i ^ index), for rows a multiple of 8:
  /// two instructions instead of a register for each address in an unrolled loop.
  __device__ static SharedAddress move(SharedAddress address, int rows, int index) {
    return (address ^ (index % kAcross * 16U)) + (rows * kDim * 2U + index / kAcross * kAcross * 16U);
  }
};

/// Starts to copy rows [first, first + kRows) of a head, `from` its first column in row 0; zeros stand for
/// rows from rows_end on and for columns from `dim` on.
template <int kRows, int kThreads, class T, int kDim>
__device__ inline void load_tile(Tile<T, kDim> tile, const T* from, std::int64_t stride, int first,
                                 int rows_end, int dim) {
  constexpr int kChunks = Tile<T, kDim>::kChunks, kRowsAtOnce = kThreads / kChunks;
  static_assert(kRows % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0,
                "rows that differ by kRowsAtOnce are permuted in the same way");
  const unsigned thread = recomputed(threadIdx.x);
  const int row = static_cast<int>(thread / kChunks), chunk = static_cast<int>(thread % kChunks);
  T* const to = tile.chunk(row, chunk);
  from += (first + row) * stride + chunk * 8;
  const int rows_left = chunk * 8 < dim ? rows_end - first - row : 0;
#pragma unroll
  for (int i = 0; i < kRows; i += kRowsAtOnce) cp_async_16(to + i * kDim, from + i * stride, i < rows_left);
}

template <int kRowTiles, int kColumnTiles>
__device__ inline void clear(float (&c)[kRowTiles][kColumnTiles][4]) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) c[m][n][e] = 0;
    }
  }
}

/// c = A B^T: rows of A from `a_row` on with the 8 kColumnTiles rows of B.
template <int kRowTiles, int kColumnTiles, class T, int kDim>
__device__ inline void multiply_rows(float (&c)[kRowTiles][kColumnTiles][4], Tile<T, kDim> a, int a_row,
                                     Tile<T, kDim> b) {
  using AnyTile = Tile<T, kDim>;
  const unsigned lane = recomputed(threadIdx.x) % 32;
  const SharedAddress a_start = shared_address(a.chunk(a_row + lane % 16, lane / 16));
  const SharedAddress b_start = shared_address(b.chunk(lane / 16 * 8 + lane % 8, lane / 8 % 2));
  clear(c);
#pragma unroll 4
  for (int k = 0; k < kDim / 16; ++k) {
    std::uint32_t left[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) ldmatrix_x4(left[m], AnyTile::move(a_start, 16 * m, 2 * k));
#pragma unroll
    for (int n = 0; n < kColumnTiles; n += 2) {
      std::uint32_t right[4];
      ldmatrix_x4(right, AnyTile::move(b_start, 8 * n, 2 * k));
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        mma_16x8x16<T>(c[m][n], left[m], right[0], right[1]);
        mma_16x8x16<T>(c[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

/// c += A B: A in registers, B the 16 kSteps rows of a tile.
template <int kRowTiles, int kSteps, class T, int kDim>
__device__ inline void multiply_add(float (&c)[kRowTiles][kDim / 8][4],
                                    const std::uint32_t (&a)[kRowTiles][kSteps][4], Tile<T, kDim> b) {
  using AnyTile = Tile<T, kDim>;
  const unsigned lane = recomputed(threadIdx.x) % 32;
  const SharedAddress b_start = shared_address(b.chunk(lane % 16, lane / 16));
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      std::uint32_t right[4];
      ldmatrix_x4_transposed(right, AnyTile::move(b_start, 16 * k, n));
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        mma_16x8x16<T>(c[m][n], a[m][k], right[0], right[1]);
        mma_16x8x16<T>(c[m][n + 1], a[m][k], right[2], right[3]);
      }
    }
  }
}

/// Accumulators rounded to T as a left operand: both lie in the same lanes.
template <class T, int kRowTiles, int kColumnTiles>
__device__ inline void round_to_left(const float (&c)[kRowTiles][kColumnTiles][4],
                                     std::uint32_t (&a)[kRowTiles][kColumnTiles / 2][4]) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int k = 0; k < kColumnTiles / 2; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&from)[4] = c[m][2 * k + i / 2];
        a[m][k][i] = pack_pair<T>(from[i % 2 * 2], from[i % 2 * 2 + 1]);
      }
    }
  }
}

/// Rows [row, row + 16) of a head at `to`, `stride` elements from one to the next; those from rows_end on and
/// columns from `dim` on do not exist.
template <class T>
struct HeadRows {
  T* to;
  std::int64_t stride;
  int row, rows_end, dim;
};

/// Writes 16 rows of accumulators, times `upper` (rows g) and `lower` (rows g + 8), through rows [tile_row,
/// tile_row + 16) of a tile that only this warp uses any more, to the rows of a head that exist.
template <class T, int kDim>
__device__ inline void store_rows(const float (&c)[kDim / 8][4], float upper, float lower, Tile<T, kDim> tile,
                                  int tile_row, HeadRows<T> rows) {
  const Lane at;
  const auto put = [&](int r, int chunk, std::uint32_t pair) {
    memcpy(tile.chunk(tile_row + r, chunk) + at.column, &pair, sizeof(pair));
  };
  __syncwarp();
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    put(at.row, n, pack_pair<T>(c[n][0] * upper, c[n][1] * upper));
    put(at.row + 8, n, pack_pair<T>(c[n][2] * lower, c[n][3] * lower));
  }
  __syncwarp();
  constexpr int kChunks = Tile<T, kDim>::kChunks;
#pragma unroll
  for (int i = 0; i < kChunks / 2; ++i) {
    const int r = (i * 32 + at.lane) / kChunks, chunk = (i * 32 + at.lane) % kChunks;
    if (rows.row + r < rows.rows_end && chunk * 8 < rows.dim) {
      store_unit(reinterpret_cast<uint4*>(rows.to + (rows.row + r) * rows.stride + chunk * 8),
                 *reinterpret_cast<const uint4*>(tile.chunk(tile_row + r, chunk)));
    }
  }
}

/// Where the document of `token` ends. All lanes of a warp ask for one token.
__device__ inline int document_end(const AttentionProblem& p, int token) {
  int low = token + 1, high = p.tokens;  // the end is in [low, high]
  while (low < high) {
    const int step = (high - low + 31) / 32, probe = low + Lane().lane * step;
    const bool before = probe < high && p.document_begin(min(probe, high - 1)) <= token;
    const int count = __popc(__ballot_sync(0xffffffffU, before));
    if (count == 0) break;
    high = min(high, low + count * step);
    low += (count - 1) * step + 1;
  }
  return low;
}

/// Whether the block has nothing to do for so many tokens, which are no more than its threads.
__device__ inline bool leaves_alone(const AttentionProblem& p, int first, int count) {
  if (p.not_asked == 0) return false;
  const int i = static_cast<int>(threadIdx.x), token = first + i;
  return __syncthreads_or(i < count && token < p.tokens && p.is_asked(token) ? 1 : 0) == 0;
}

/// Over the four lanes that share rows of accumulators.
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffU, x, 1);
  return x + __shfl_xor_sync(0xffffffffU, x, 2);
}

/// work(Tag<T>{}, kDim) for the 16-bit types and the smallest of the compiled head sizes that `dim` fits in.
template <class Work>
void dispatch_tile(DType dtype, int dim, const Work& work) {
  const auto with_dim = [&](auto tag) {
    if (dim <= 32) return work(tag, std::integral_constant<int, 32>{});
    if (dim <= 64) return work(tag, std::integral_constant<int, 64>{});
    work(tag, std::integral_constant<int, 128>{});
  };
  if (dtype == DType::bfloat16) return with_dim(Tag<__nv_bfloat16>{});
  with_dim(Tag<__half>{});
}

}  // namespace llampi::device::cuda
