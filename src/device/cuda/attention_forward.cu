// SPDX-License-Identifier: Apache-2.0
// Attention forward on tensor cores, after FlashAttention-2 (Dao, arXiv 2307.08691): a block has 128 queries
// of one head and walks over the tiles of their keys; softmax is corrected as larger scores turn up. Two
// tiles are always under way: values arrive during the product of queries and keys, the next keys during that
// of probabilities and values. Tiles of keys start anew where a document begins, so that the bits of a document
// do not depend on what lies beside it. With a window, those that lie before it are left out.
#include "device/cuda/attention_tile.cuh"

namespace llampi::device::cuda {
namespace {

template <class T, int kDim>
struct ForwardShape {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kRowTiles = 2;  // of a warp: each fragment of keys or values is used twice
  static constexpr int kQueries = 16 * kRowTiles * kWarps, kKeys = 64;
  static constexpr int kSharedBytes =
      (kQueries + 2 * kKeys) * kDim * static_cast<int>(sizeof(T)) + kQueries * 4;
};

/// Of the rows of a lane, in the order m, upper or lower half.
template <int kRowTiles>
struct SoftmaxRows {
  float largest[2 * kRowTiles];  ///< of the scores so far, before they are scaled
  float sum[2 * kRowTiles];      ///< of the probabilities in this lane's columns
};

/// Scores [queries, keys], of which the lane has rows from `query` on and columns from `key` on: those that
/// are not visible, and those of keys from keys_end on, become -infinity.
template <int kRowTiles, int kColumnTiles>
__device__ inline void mask_scores(float (&s)[kRowTiles][kColumnTiles][4], int query, int key, int keys_end,
                                   const int* begins) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * m + 8 * half, begin = begins[row];
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = key + 8 * n + e;
          if (column < begin || column > query + row || column >= keys_end) s[m][n][2 * half + e] = -INFINITY;
        }
      }
    }
  }
}

/// Scores become probabilities relative to the largest score so far; what was summed before is corrected.
template <int kRowTiles, int kColumnTiles, int kDimTiles>
__device__ inline void soften(float (&s)[kRowTiles][kColumnTiles][4], float scale_log2,
                              SoftmaxRows<kRowTiles>& rows, float (&o)[kRowTiles][kDimTiles][4]) {
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const int m = i / 2, e = i % 2 * 2;
    float largest = rows.largest[i];
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) largest = fmaxf(largest, fmaxf(s[m][n][e], s[m][n][e + 1]));
    largest = quad_max(largest);
    // Nothing visible so far: every exponent below is -infinity.
    const float visible = largest == -INFINITY ? 0.0F : largest, reference = visible * scale_log2;
    // Subtracted first: where the largest stays, the correction is exactly 1. A fused multiply-add of the
    // product and `reference`, which is rounded, leaves a rest that would grow with every tile.
    const float correction = exp2_approximate((rows.largest[i] - visible) * scale_log2);
    rows.largest[i] = largest;
    rows.sum[i] *= correction;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      s[m][n][e] = exp2_approximate(s[m][n][e] * scale_log2 - reference);
      s[m][n][e + 1] = exp2_approximate(s[m][n][e + 1] * scale_log2 - reference);
      rows.sum[i] += s[m][n][e] + s[m][n][e + 1];
    }
#pragma unroll
    for (int n = 0; n < kDimTiles; ++n) {
      o[m][n][e] *= correction;
      o[m][n][e + 1] *= correction;
    }
  }
}

template <class T, int kDim>
__global__ void __launch_bounds__(ForwardShape<T, kDim>::kThreads, 2)
    forward_kernel(AttentionProblem p, const T* qkv, T* out, float* log_sum_exp) {
  using Shape = ForwardShape<T, kDim>;
  constexpr int kRowTiles = Shape::kRowTiles, kKeys = Shape::kKeys, kThreads = Shape::kThreads;
  const Tile<T, kDim> query_tile{dynamic_shared<T>()};
  const Tile<T, kDim> key_tile{query_tile.data + Shape::kQueries * kDim};
  const Tile<T, kDim> value_tile{key_tile.data + kKeys * kDim};
  int* const begins = reinterpret_cast<int*>(value_tile.data + kKeys * kDim);

  // The last queries have the most keys: they come first.
  const int head = blockIdx.x, first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Shape::kQueries;
  const int keys_end = min(first + Shape::kQueries, p.tokens);
  const int keys_begin = p.first_tile(first, kKeys);
  const auto load_keys = [&](Tile<T, kDim> tile, int key, int column) {
    load_tile<kKeys, kThreads>(tile, qkv + column, p.qkv_stride, key, p.tokens, p.dim);
  };
  const int key_column = p.key_column(head / p.group), value_column = p.value_column(head / p.group);
  load_tile<Shape::kQueries, kThreads>(query_tile, qkv + p.query_column(head), p.qkv_stride, first, p.tokens,
                                       p.dim);
  load_keys(key_tile, keys_begin, key_column);
  cp_async_commit();
  begins[threadIdx.x] = p.first_key(min(first + static_cast<int>(threadIdx.x), p.tokens - 1));

  const int warp_row = warp_index() * 16 * kRowTiles, warp_query = first + warp_row;
  const float scale_log2 = p.scale * kLog2E;
  SoftmaxRows<kRowTiles> rows;
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    rows.largest[i] = -INFINITY;
    rows.sum[i] = 0;
  }
  float o[kRowTiles][kDim / 8][4];
  clear(o);

  int end = document_end(p, keys_begin);
  for (int key = keys_begin; key < keys_end;) {
    const int tile_end = min(key + kKeys, end);
    cp_async_wait<0>();
    __syncthreads();  // the keys are there; the last values have been used
    load_keys(value_tile, key, value_column);
    cp_async_commit();
    const bool visible = key <= warp_query + 16 * kRowTiles - 1 && begins[warp_row] < tile_end;
    float s[kRowTiles][kKeys / 8][4];
    if (visible) multiply_rows(s, query_tile, warp_row, key_tile);
    cp_async_wait<0>();
    __syncthreads();  // the values are there; the keys have been used
    if (tile_end < keys_end) {
      load_keys(key_tile, tile_end, key_column);
      cp_async_commit();
    }
    if (visible) {
      if (key + kKeys - 1 > warp_query || begins[warp_row + 16 * kRowTiles - 1] > key) {
        const Lane at;
        mask_scores(s, warp_query + at.row, key + at.column, tile_end, begins + warp_row + at.row);
      }
      soften(s, scale_log2, rows, o);
      std::uint32_t probabilities[kRowTiles][kKeys / 16][4];
      round_to_left<T>(s, probabilities);
      multiply_add(o, probabilities, value_tile);
    }
    key = tile_end;
    if (key == end && key < keys_end) end = document_end(p, key);
  }

  const Lane at;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    const float upper = quad_sum(rows.sum[2 * m]), lower = quad_sum(rows.sum[2 * m + 1]);
    const int row = warp_query + 16 * m;
    store_rows(o[m], 1 / upper, 1 / lower, query_tile, warp_row + 16 * m,
               HeadRows<T>{out + p.query_column(head), p.out_stride, row, p.tokens, p.dim});
    float* const lse = log_sum_exp + static_cast<std::int64_t>(head) * p.tokens + row + at.row;
    if (at.column == 0 && row + at.row < p.tokens) lse[0] = rows.largest[2 * m] * p.scale + logf(upper);
    if (at.column == 0 && row + at.row + 8 < p.tokens)
      lse[8] = rows.largest[2 * m + 1] * p.scale + logf(lower);
  }
}

}  // namespace

bool fits_tensor_cores(const AttentionProblem& problem, DType dtype) {
  return (dtype == DType::bfloat16 || dtype == DType::float16) && problem.dim <= 128 && problem.dim % 8 == 0;
}

void tensor_attention(const AttentionProblem& problem, const AttentionOperands& operands,
                      cudaStream_t stream) {
  dispatch_tile(operands.dtype, problem.dim, [&](auto tag, auto dim) {
    using T = typename decltype(tag)::type;
    using Shape = ForwardShape<T, dim()>;
    const dim3 grid(problem.query_heads, (problem.tokens + Shape::kQueries - 1) / Shape::kQueries);
    launch_with_shared(forward_kernel<T, dim()>, grid, dim3(Shape::kThreads), Shape::kSharedBytes, stream,
                       problem, static_cast<const T*>(operands.qkv), static_cast<T*>(operands.out),
                       operands.log_sum_exp);
  });
}

}  // namespace llampi::device::cuda
