// SPDX-License-Identifier: Apache-2.0
// Attention backward on tensor cores, after FlashAttention-2 (Dao, arXiv 2307.08691). With P = exp(S -
// log_sum_exp) and dS = P * (dout V^T - delta):   dV = P^T dout,   dK = scale dS^T Q,   dQ = scale dS K. A
// kernel over tiles of keys sums dK and dV of a key/value head over all of its queries, a kernel over tiles
// of queries sums dQ: the scores are computed twice, but every sum has one order and no gradient waits in
// memory.
#include "device/cuda/attention_tile.cuh"

namespace llampi::device::cuda {
namespace {

/// What belongs to a row of scores, in shared memory. Rows from T on: zeros.
template <int kRows>
struct QueryRows {
  static constexpr int kBytes = 3 * kRows * 4;
  float* log_sum_exp;
  int reach_of_all;  ///< AttentionProblem::reach

  __device__ float* delta() const { return log_sum_exp + kRows; }
  /// So many keys before itself the query of a row sees.
  __device__ int reach(int row) const {
    return min(reinterpret_cast<const int*>(log_sum_exp + 2 * kRows)[row], reach_of_all);
  }
  __device__ QueryRows from(int row) const { return {log_sum_exp + row, reach_of_all}; }

  template <int kThreads>
  __device__ void load(const AttentionProblem& p, const float* lse, const float* deltas, int head,
                       int first) const {
    const std::int64_t offset = static_cast<std::int64_t>(head) * p.tokens;
    for (int i = static_cast<int>(threadIdx.x); i < 3 * kRows; i += kThreads) {
      const int row = first + i % kRows;
      const bool valid = row < p.tokens;
      const void* from = p.positions + (valid ? row : 0);
      if (i / kRows < 2) from = (i / kRows == 0 ? lse : deltas) + (valid ? offset + row : 0);
      cp_async_4(log_sum_exp + i, from, valid);
    }
  }
};

// ---- dK, dV ----

template <class T, int kDim, int kWarps_>
struct KeyShape {
  static constexpr int kWarps = kWarps_, kThreads = 32 * kWarps, kKeys = 16 * kWarps, kQueries = 64;
  static constexpr int kTileElements = kQueries * kDim;  // of a tile of a stage
  static constexpr int kSharedBytes =
      (2 * kKeys + 4 * kQueries) * kDim * static_cast<int>(sizeof(T)) + 2 * QueryRows<kQueries>::kBytes;
};

/// Scores [keys, queries], of which the lane has rows from `key` and columns from `query` on, become
/// probabilities: zero where the key is not visible, and for queries from queries_end on. `rows` are those of
/// the lane's first column.
template <bool kMasked, int kColumnTiles, int kRows>
__device__ inline void keys_probabilities(float (&s)[1][kColumnTiles][4], float scale_log2, int key,
                                          int query, int queries_end, QueryRows<kRows> rows) {
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int column = 8 * n + e % 2, row = e / 2 * 8;
      const float p = exp2_approximate(s[0][n][e] * scale_log2 - rows.log_sum_exp[column] * kLog2E);
      bool visible = true;
      if (kMasked) {
        const int behind = query + column - (key + row);  // of the query, behind the key
        visible = behind >= 0 && behind <= rows.reach(column) && query + column < queries_end;
      }
      s[0][n][e] = visible ? p : 0.0F;
    }
  }
}

template <class T, int kDim, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 8 / kWarps)
    key_value_gradient_kernel(AttentionProblem p, const T* qkv, const T* dout, const float* log_sum_exp,
                              const float* delta, T* dqkv) {
  using Shape = KeyShape<T, kDim, kWarps>;
  using AnyTile = Tile<T, kDim>;
  constexpr int kKeys = Shape::kKeys, kQueries = Shape::kQueries, kThreads = Shape::kThreads;
  const AnyTile key_tile{dynamic_shared<T>()}, value_tile{key_tile.data + kKeys * kDim};
  const auto query_tile = [&](int stage) {
    return AnyTile{value_tile.data + kKeys * kDim + 2 * stage * Shape::kTileElements};
  };
  const auto gradient_tile = [&](int stage) {
    return AnyTile{query_tile(stage).data + Shape::kTileElements};
  };
  const auto query_rows = [&](int stage) {
    return QueryRows<kQueries>{reinterpret_cast<float*>(query_tile(2).data) + stage * 3 * kQueries, p.reach};
  };

  // The first keys have the most queries: they come first.
  const int first = static_cast<int>(blockIdx.y) * kKeys, key_value_head = blockIdx.x;
  static_assert(kKeys <= kThreads);
  if (leaves_alone(p, first, kKeys)) return;
  load_tile<kKeys, kThreads>(key_tile, qkv + p.key_column(key_value_head), p.qkv_stride, first, p.tokens,
                             p.dim);
  load_tile<kKeys, kThreads>(value_tile, qkv + p.value_column(key_value_head), p.qkv_stride, first, p.tokens,
                             p.dim);
  // Tiles of queries start where a document begins, as those of keys do elsewhere.
  const int begin = p.document_begin(first), queries_begin = begin + (first - begin) / kQueries * kQueries;
  const int first_end = document_end(p, first), last_key = min(first + kKeys, p.tokens) - 1;
  const int heads_end = (key_value_head + 1) * p.group;
  int head = key_value_head * p.group, query = queries_begin, end = first_end;  // of the step under way
  const auto load_step = [&](int stage, int of_head, int of_query) {
    const int column = p.query_column(of_head);
    load_tile<kQueries, kThreads>(query_tile(stage), qkv + column, p.qkv_stride, of_query, p.tokens, p.dim);
    load_tile<kQueries, kThreads>(gradient_tile(stage), dout + column, p.out_stride, of_query, p.tokens,
                                  p.dim);
    query_rows(stage).template load<kThreads>(p, log_sum_exp, delta, of_head, of_query);
    cp_async_commit();
  };
  load_step(0, head, query);

  const int warp_row = warp_index() * 16, warp_key = first + warp_row;
  const float scale_log2 = p.scale * kLog2E;
  float dk[1][kDim / 8][4], dv[1][kDim / 8][4];
  clear(dk);
  clear(dv);
  for (int stage = 0; head < heads_end; stage ^= 1) {
    cp_async_wait<0>();
    __syncthreads();  // this step's tiles are there; the last step's have been used
    const int tile_end = min(query + kQueries, end);
    // With a window, queries from last_key + reach + 1 on see none of the keys.
    const bool same_head = (tile_end < end || end <= last_key) && tile_end <= last_key + p.reach;
    const int next_head = same_head ? head : head + 1, next_query = same_head ? tile_end : queries_begin;
    if (next_head < heads_end) load_step(stage ^ 1, next_head, next_query);

    const QueryRows<kQueries> all_rows = query_rows(stage);
    if (warp_key < tile_end && query - all_rows.reach(0) <= warp_key + 15) {
      const Lane at;
      const QueryRows<kQueries> rows = all_rows.from(at.column);
      float s[1][kQueries / 8][4];
      multiply_rows(s, key_tile, warp_row, query_tile(stage));
      if (warp_key + 15 > query || query + kQueries - 1 - all_rows.reach(kQueries - 1) > warp_key) {
        keys_probabilities<true>(s, scale_log2, warp_key + at.row, query + at.column, tile_end, rows);
      } else {
        keys_probabilities<false>(s, scale_log2, warp_key + at.row, query + at.column, tile_end, rows);
      }
      std::uint32_t left[1][kQueries / 16][4];
      round_to_left<T>(s, left);
      multiply_add(dv, left, gradient_tile(stage));
      float ds[1][kQueries / 8][4];
      multiply_rows(ds, value_tile, warp_row, gradient_tile(stage));
#pragma unroll
      for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) ds[0][n][e] = s[0][n][e] * (ds[0][n][e] - rows.delta()[8 * n + e % 2]);
      }
      round_to_left<T>(ds, left);
      multiply_add(dk, left, query_tile(stage));
    }
    if (!same_head) {
      end = first_end;
    } else if (tile_end == end) {
      end = document_end(p, end);
    }
    head = next_head;
    query = next_query;
  }

  store_rows(dk[0], p.scale, p.scale, key_tile, warp_row,
             HeadRows<T>{dqkv + p.key_column(key_value_head), p.qkv_stride, warp_key, p.tokens, p.dim});
  store_rows(dv[0], 1, 1, value_tile, warp_row,
             HeadRows<T>{dqkv + p.value_column(key_value_head), p.qkv_stride, warp_key, p.tokens, p.dim});
}

// ---- dQ ----

template <class T, int kDim>
struct QueryShape {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kRowTiles = 2;
  static constexpr int kQueries = 16 * kRowTiles * kWarps, kKeys = 32;
  static constexpr int kSharedBytes =
      (2 * kQueries + 4 * kKeys) * kDim * static_cast<int>(sizeof(T)) + QueryRows<kQueries>::kBytes;
};

/// The first query and key of a lane, and where visible keys end.
struct LaneCorner {
  int query, key, keys_end;
};

/// Scores [queries, keys] and dP = dout V^T (in `ds`), of which the lane has rows from at.query and columns
/// from at.key on: ds becomes dS, zero where the key is not visible, and for keys from at.keys_end on. `rows`
/// are those of the lane's first row.
template <bool kMasked, int kRowTiles, int kColumnTiles, int kRows>
__device__ inline void query_gradients(const float (&s)[kRowTiles][kColumnTiles][4],
                                       float (&ds)[kRowTiles][kColumnTiles][4], float scale_log2,
                                       LaneCorner at, QueryRows<kRows> rows) {
  const auto [query, key, keys_end] = at;
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const int m = i / 2, row = 8 * i;
    const float reference = rows.log_sum_exp[row] * kLog2E, delta = rows.delta()[row];
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int e = i % 2 * 2; e < i % 2 * 2 + 2; ++e) {
        bool visible = true;
        if (kMasked) {
          const int column = key + 8 * n + e % 2, behind = query + row - column;
          visible = behind >= 0 && behind <= rows.reach(row) && column < keys_end;
        }
        const float p = exp2_approximate(s[m][n][e] * scale_log2 - reference);
        ds[m][n][e] = visible ? p * (ds[m][n][e] - delta) : 0.0F;
      }
    }
  }
}

template <class T, int kDim>
__global__ void __launch_bounds__(QueryShape<T, kDim>::kThreads, 2)
    query_gradient_kernel(AttentionProblem p, const T* qkv, const T* dout, const float* log_sum_exp,
                          const float* delta, T* dqkv) {
  using Shape = QueryShape<T, kDim>;
  using AnyTile = Tile<T, kDim>;
  constexpr int kRowTiles = Shape::kRowTiles, kQueries = Shape::kQueries, kKeys = Shape::kKeys;
  constexpr int kThreads = Shape::kThreads;
  const AnyTile query_tile{dynamic_shared<T>()}, gradient_tile{query_tile.data + kQueries * kDim};
  const auto key_tile = [&](int stage) {
    return AnyTile{gradient_tile.data + kQueries * kDim + 2 * stage * kKeys * kDim};
  };
  const auto value_tile = [&](int stage) { return AnyTile{key_tile(stage).data + kKeys * kDim}; };
  const QueryRows<kQueries> rows{reinterpret_cast<float*>(key_tile(2).data), p.reach};

  const int head = blockIdx.x, first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kQueries;
  const int column = p.query_column(head);
  static_assert(kQueries <= kThreads);
  if (leaves_alone(p, first, kQueries)) return;
  const auto load_step = [&](int stage, int key) {
    const T *const keys = qkv + p.key_column(head / p.group), *const values =
                                                                  qkv + p.value_column(head / p.group);
    load_tile<kKeys, kThreads>(key_tile(stage), keys, p.qkv_stride, key, p.tokens, p.dim);
    load_tile<kKeys, kThreads>(value_tile(stage), values, p.qkv_stride, key, p.tokens, p.dim);
    cp_async_commit();
  };
  load_tile<kQueries, kThreads>(query_tile, qkv + column, p.qkv_stride, first, p.tokens, p.dim);
  load_tile<kQueries, kThreads>(gradient_tile, dout + column, p.out_stride, first, p.tokens, p.dim);
  rows.template load<kThreads>(p, log_sum_exp, delta, head, first);
  const int keys_begin = p.first_tile(first, kKeys), keys_end = min(first + kQueries, p.tokens);
  load_step(0, keys_begin);

  const int warp_row = warp_index() * 16 * kRowTiles, warp_query = first + warp_row;
  const int warp_last = warp_row + 16 * kRowTiles - 1;
  const float scale_log2 = p.scale * kLog2E;
  float dq[kRowTiles][kDim / 8][4];
  clear(dq);
  int end = document_end(p, keys_begin), stage = 0;
  for (int key = keys_begin; key < keys_end; stage ^= 1) {
    const int tile_end = min(key + kKeys, end);
    cp_async_wait<0>();
    __syncthreads();  // this step's tiles are there; the last step's have been used
    if (tile_end < keys_end) load_step(stage ^ 1, tile_end);
    if (key <= first + warp_last && warp_query - rows.reach(warp_row) < tile_end) {
      float s[kRowTiles][kKeys / 8][4], ds[kRowTiles][kKeys / 8][4];
      multiply_rows(s, query_tile, warp_row, key_tile(stage));
      multiply_rows(ds, gradient_tile, warp_row, value_tile(stage));
      const Lane at;
      const QueryRows<kQueries> lane_rows = rows.from(warp_row + at.row);
      if (key + kKeys - 1 > warp_query || first + warp_last - rows.reach(warp_last) > key) {
        query_gradients<true>(s, ds, scale_log2, {warp_query + at.row, key + at.column, tile_end}, lane_rows);
      } else {
        query_gradients<false>(s, ds, scale_log2, {warp_query + at.row, key + at.column, tile_end},
                               lane_rows);
      }
      std::uint32_t left[kRowTiles][kKeys / 16][4];
      round_to_left<T>(ds, left);
      multiply_add(dq, left, key_tile(stage));
    }
    key = tile_end;
    if (key == end && key < keys_end) end = document_end(p, key);
  }
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    store_rows(dq[m], p.scale, p.scale, query_tile, warp_row + 16 * m,
               HeadRows<T>{dqkv + column, p.qkv_stride, warp_query + 16 * m, p.tokens, p.dim});
  }
}

template <class T, int kDim, int kWarps>
void launch_key_value_gradient(const AttentionProblem& problem, const AttentionOperands& operands,
                               cudaStream_t stream) {
  using Shape = KeyShape<T, kDim, kWarps>;
  const dim3 grid(problem.key_value_heads, (problem.tokens + Shape::kKeys - 1) / Shape::kKeys);
  launch_with_shared(key_value_gradient_kernel<T, kDim, kWarps>, grid, dim3(Shape::kThreads),
                     Shape::kSharedBytes, stream, problem, static_cast<const T*>(operands.qkv),
                     static_cast<const T*>(operands.dout), operands.log_sum_exp, operands.delta,
                     static_cast<T*>(operands.dqkv));
}

}  // namespace

void tensor_attention_backward(const AttentionProblem& problem, const AttentionOperands& operands,
                               std::size_t shared_bytes, cudaStream_t stream) {
  dispatch_tile(operands.dtype, problem.dim, [&](auto tag, auto dim) {
    using T = typename decltype(tag)::type;
    // Tiles of 128 keys read each query half as often as tiles of 64, which fit into any GPU's shared memory.
    if (KeyShape<T, dim(), 8>::kSharedBytes <= static_cast<int>(shared_bytes)) {
      launch_key_value_gradient<T, dim(), 8>(problem, operands, stream);
    } else {
      launch_key_value_gradient<T, dim(), 4>(problem, operands, stream);
    }
    using Shape = QueryShape<T, dim()>;
    const dim3 grid(problem.query_heads, (problem.tokens + Shape::kQueries - 1) / Shape::kQueries);
    launch_with_shared(query_gradient_kernel<T, dim()>, grid, dim3(Shape::kThreads), Shape::kSharedBytes,
                       stream, problem, static_cast<const T*>(operands.qkv),
                       static_cast<const T*>(operands.dout), operands.log_sum_exp, operands.delta,
                       static_cast<T*>(operands.dqkv));
  });
}

}  // namespace llampi::device::cuda
