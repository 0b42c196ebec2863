// SPDX-License-Identifier: Apache-2.0
// Attention of the next tokens of a sequence to the keys and values that are kept of it: generation. Few
// queries meet many keys, so a block has one query of one head, and its warps take the keys by turns.
#include <algorithm>
#include <cmath>

#include "device/cuda/attention.cuh"
#include "device/cuda/attention_rows.cuh"
#include "device/cuda/cuda_device.hpp"
#include "device/cuda/kernels.cuh"

namespace llampi::device::cuda {
namespace {

struct CachedProblem {
  int kv_len = 0, dim = 0, group = 1;  ///< query heads per key/value head
  int reach = 0;                       ///< as AttentionProblem::reach
  float scale = 1;
  std::int64_t qkv_stride = 0, out_stride = 0;
  std::int64_t width = 0;  ///< of a row of the cache; its second half are values
};

/// Keys and values of the new tokens; a block has one of them.
template <class T>
__global__ void keep_kernel(CachedProblem p, const T* qkv, T* cache) {
  const std::int64_t token = blockIdx.x;
  const T* const from = qkv + token * p.qkv_stride + p.out_stride;  // behind the query heads
  T* const to = cache + (p.kv_len + token) * p.width;
  for (std::int64_t i = threadIdx.x; i < p.width; i += blockDim.x) to[i] = from[i];
}

template <class T, int kWidth>
__global__ void cached_kernel(CachedProblem p, const T* qkv, const T* cache, T* out) {
  __shared__ float query[kMaximumDim], probabilities[kPlainWarps][32];
  __shared__ float sums[kPlainWarps][kMaximumDim], totals[kPlainWarps], maxima[kPlainWarps];
  const int token = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t column = static_cast<std::int64_t>(head) * p.dim;
  for (int d = static_cast<int>(threadIdx.x); d < p.dim; d += kPlainWarps * 32)
    query[d] = p.scale * to_float(qkv[token * p.qkv_stride + column + d]);
  __syncthreads();

  const T* const keys = cache + static_cast<std::int64_t>(head / p.group) * p.dim;
  const T* const values = keys + p.width / 2;
  const int keys_end = p.kv_len + token + 1, keys_begin = max(0, keys_end - 1 - p.reach);
  float largest = -INFINITY, total = 0, sum[kLaneColumns] = {};
  for (int first = keys_begin + warp * 32; first < keys_end; first += kPlainWarps * 32) {
    const int count = min(32, keys_end - first);
    float score = -INFINITY;
    if (lane < count) score = dot<kWidth>(query, keys + (first + lane) * p.width, p.dim);
    const float now = fmaxf(largest, warp_max(score)), correction = expf(largest - now);
    const float probability = expf(score - now);
    probabilities[warp][lane] = probability;
    total = total * correction + warp_sum(probability);
    largest = now;
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) sum[i] *= correction;
    __syncwarp();
    add_rows(sum, probabilities[warp], StridedRows<T>{values + first * p.width, p.width}, count, p.dim, lane);
    __syncwarp();
  }
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) {
    if (lane + 32 * i < p.dim) sums[warp][lane + 32 * i] = sum[i];
  }
  if (lane == 0) {
    totals[warp] = total;
    maxima[warp] = largest;
  }
  __syncthreads();

  // A warp without keys has -infinity, which counts as nothing beside the first warp's.
  float highest = maxima[0], all = 0, factors[kPlainWarps];
  for (int w = 1; w < kPlainWarps; ++w) highest = fmaxf(highest, maxima[w]);
  for (int w = 0; w < kPlainWarps; ++w) {
    factors[w] = expf(maxima[w] - highest);
    all += factors[w] * totals[w];
  }
  for (int d = static_cast<int>(threadIdx.x); d < p.dim; d += kPlainWarps * 32) {
    float value = 0;
    for (int w = 0; w < kPlainWarps; ++w) value += factors[w] * sums[w][d];
    out[token * p.out_stride + column + d] = from_float<T>(value / all);
  }
}

}  // namespace

void CudaDevice::execute(const op::CachedAttention& o) {
  const std::int64_t tokens = o.qkv.rows;
  require(o.kv_len >= 0 && o.kv_len + tokens <= o.kv_cache.rows, "more tokens than the cache has rows");
  check_head_dim(o.shape.head_dim);
  CachedProblem problem;
  problem.kv_len = static_cast<int>(o.kv_len);
  problem.dim = static_cast<int>(o.shape.head_dim);
  problem.group = static_cast<int>(o.shape.query_heads / o.shape.key_value_heads);
  const std::int64_t keys = o.kv_len + tokens;
  problem.reach = static_cast<int>((o.shape.window > 0 ? std::min(o.shape.window, keys) : keys) - 1);
  problem.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(o.shape.head_dim)));
  problem.qkv_stride = o.shape.qkv_cols();
  problem.out_stride = o.shape.query_cols();
  problem.width = 2 * o.shape.key_value_cols();
  dispatch_width(problem.dim, o.qkv.dtype, [&](auto tag, auto width) {
    using T = typename decltype(tag)::type;
    auto* const from = static_cast<T*>(elements_of(o.qkv, o.qkv.dtype, tokens, problem.qkv_stride, "qkv"));
    auto* const kept =
        static_cast<T*>(elements_of(o.kv_cache, o.qkv.dtype, o.kv_cache.rows, problem.width, "cache"));
    auto* const to = static_cast<T*>(elements_of(o.out, o.qkv.dtype, tokens, problem.out_stride, "out"));
    const auto blocks = static_cast<unsigned>(tokens);
    launch(keep_kernel<T>, dim3(blocks), dim3(128), 0, compute(), problem, from, kept);
    launch(cached_kernel<T, width()>, dim3(blocks, static_cast<unsigned>(o.shape.query_heads)),
           dim3(kPlainWarps * 32), 0, compute(), problem, from, kept, to);
  });
}

}  // namespace llampi::device::cuda
