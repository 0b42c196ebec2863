// SPDX-License-Identifier: Apache-2.0
// Attention for what the tensor-core kernels do not take: float32, heads of more than 128 or of no multiple
// of 8. A warp has one query (or key) of one head. Its lanes are 32 keys (queries) while there are scores to
// compute, and then columns of the head.
#include <cmath>

#include "device/cuda/attention.cuh"
#include "device/cuda/attention_rows.cuh"
#include "device/cuda/vectors.cuh"

namespace llampi::device::cuda {
namespace {

/// What the lanes of each warp show each other.
struct Board {
  float row[kPlainWarps][kMaximumDim], gradient[kPlainWarps][kMaximumDim];
  float p[kPlainWarps][32], ds[kPlainWarps][32];
};

struct PlainPlace {
  int warp = static_cast<int>(threadIdx.x) / 32;
  int lane = static_cast<int>(threadIdx.x) % 32;
  int row = static_cast<int>(blockIdx.x) * kPlainWarps + warp;
  int head = blockIdx.y;
};

template <class T, int kWidth>
__global__ void plain_forward_kernel(AttentionProblem p, const T* qkv, T* out, float* log_sum_exp) {
  __shared__ Board board;
  const PlainPlace at;
  if (at.row >= p.tokens) return;
  const T* const keys = qkv + p.key_column(at.head / p.group);
  const T* const values = qkv + p.value_column(at.head / p.group);
  read_row(qkv + at.row * p.qkv_stride + p.query_column(at.head), p.dim, at.lane, board.row[at.warp]);
  float largest = -INFINITY, sum = 0, sums[kLaneColumns] = {};
  for (int first = p.first_key(at.row); first <= at.row; first += 32) {
    const int count = min(32, at.row + 1 - first);
    __syncwarp();  // the row is there; the last probabilities have been used
    float score = -INFINITY;
    if (at.lane < count)
      score = p.scale * dot<kWidth>(board.row[at.warp], keys + (first + at.lane) * p.qkv_stride, p.dim);
    const float now = fmaxf(largest, warp_max(score)), correction = expf(largest - now);
    const float probability = expf(score - now);
    board.p[at.warp][at.lane] = probability;
    largest = now;
    sum = sum * correction + warp_sum(probability);
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) sums[i] *= correction;
    __syncwarp();
    add_rows(sums, board.p[at.warp], StridedRows<T>{values + first * p.qkv_stride, p.qkv_stride}, count,
             p.dim, at.lane);
  }
  write_row(sums, 1 / sum, out + at.row * p.out_stride + p.query_column(at.head), p.dim, at.lane);
  if (at.lane == 0) log_sum_exp[static_cast<std::int64_t>(at.head) * p.tokens + at.row] = largest + logf(sum);
}

template <class T, int kWidth>
__global__ void plain_query_gradient_kernel(AttentionProblem p, const T* qkv, const T* dout,
                                            const float* log_sum_exp, const float* delta, T* dqkv) {
  __shared__ Board board;
  const PlainPlace at;
  if (at.row >= p.tokens) return;
  const T* const keys = qkv + p.key_column(at.head / p.group);
  const T* const values = qkv + p.value_column(at.head / p.group);
  const int column = p.query_column(at.head);
  const std::int64_t statistic = static_cast<std::int64_t>(at.head) * p.tokens + at.row;
  read_row(qkv + at.row * p.qkv_stride + column, p.dim, at.lane, board.row[at.warp]);
  read_row(dout + at.row * p.out_stride + column, p.dim, at.lane, board.gradient[at.warp]);
  float sums[kLaneColumns] = {};
  for (int first = p.first_key(at.row); first <= at.row; first += 32) {
    const int count = min(32, at.row + 1 - first);
    __syncwarp();
    if (at.lane < count) {
      const std::int64_t offset = (first + at.lane) * p.qkv_stride;
      const float score = p.scale * dot<kWidth>(board.row[at.warp], keys + offset, p.dim);
      const float dp = dot<kWidth>(board.gradient[at.warp], values + offset, p.dim);
      board.ds[at.warp][at.lane] = expf(score - log_sum_exp[statistic]) * (dp - delta[statistic]);
    }
    __syncwarp();
    add_rows(sums, board.ds[at.warp], StridedRows<T>{keys + first * p.qkv_stride, p.qkv_stride}, count, p.dim,
             at.lane);
  }
  write_row(sums, p.scale, dqkv + at.row * p.qkv_stride + column, p.dim, at.lane);
}

template <class T, int kWidth>
__global__ void key_value_gradient_kernel(AttentionProblem p, const T* qkv, const T* dout,
                                          const float* log_sum_exp, const float* delta, T* dqkv) {
  __shared__ Board board;
  const PlainPlace at;  // a key of a key/value head
  if (at.row >= p.tokens) return;
  const std::int64_t row = at.row * p.qkv_stride;
  read_row(qkv + row + p.key_column(at.head), p.dim, at.lane, board.row[at.warp]);
  read_row(qkv + row + p.value_column(at.head), p.dim, at.lane, board.gradient[at.warp]);
  __syncwarp();  // the rows are there: votes order no memory
  float dk[kLaneColumns] = {}, dv[kLaneColumns] = {};
  for (int head = at.head * p.group; head < (at.head + 1) * p.group; ++head) {
    const T* const queries = qkv + p.query_column(head);
    const T* const gradients = dout + p.query_column(head);
    const std::int64_t statistics = static_cast<std::int64_t>(head) * p.tokens;
    for (int first = at.row; first < p.tokens && p.first_key(first) <= at.row; first += 32) {
      const int query = first + at.lane;
      const bool visible = query < p.tokens && p.first_key(min(query, p.tokens - 1)) <= at.row;
      const int count = __popc(__ballot_sync(0xffffffffU, visible));  // those come first
      if (visible) {
        const float score = p.scale * dot<kWidth>(board.row[at.warp], queries + query * p.qkv_stride, p.dim);
        const float dp = dot<kWidth>(board.gradient[at.warp], gradients + query * p.out_stride, p.dim);
        const float probability = expf(score - log_sum_exp[statistics + query]);
        board.p[at.warp][at.lane] = probability;
        board.ds[at.warp][at.lane] = probability * (dp - delta[statistics + query]);
      }
      __syncwarp();
      add_rows(dk, board.ds[at.warp], StridedRows<T>{queries + first * p.qkv_stride, p.qkv_stride}, count,
               p.dim, at.lane);
      add_rows(dv, board.p[at.warp], StridedRows<T>{gradients + first * p.out_stride, p.out_stride}, count,
               p.dim, at.lane);
      __syncwarp();
    }
  }
  write_row(dk, p.scale, dqkv + row + p.key_column(at.head), p.dim, at.lane);
  write_row(dv, 1, dqkv + row + p.value_column(at.head), p.dim, at.lane);
}

template <class T, int kWidth>
__global__ void delta_kernel(AttentionProblem p, const T* dout, const T* out, float* delta) {
  const PlainPlace at;
  if (at.row >= p.tokens) return;
  const std::int64_t offset = at.row * p.out_stride + p.query_column(at.head);
  float sum = 0;
  for (int d = at.lane * kWidth; d < p.dim; d += 32 * kWidth) {
    const auto a = load_vector<kWidth>(dout + offset + d), b = load_vector<kWidth>(out + offset + d);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += a[i] * b[i];
  }
  sum = warp_sum(sum);
  if (at.lane == 0) delta[static_cast<std::int64_t>(at.head) * p.tokens + at.row] = sum;
}

dim3 grid_of(const AttentionProblem& problem, int heads) {
  return {(problem.tokens + kPlainWarps - 1U) / kPlainWarps, static_cast<unsigned>(heads)};
}

}  // namespace

void plain_attention(const AttentionProblem& problem, const AttentionOperands& operands,
                     cudaStream_t stream) {
  dispatch_width(problem.dim, operands.dtype, [&](auto tag, auto width) {
    using T = typename decltype(tag)::type;
    launch(plain_forward_kernel<T, width()>, grid_of(problem, problem.query_heads), dim3(32 * kPlainWarps), 0,
           stream, problem, static_cast<const T*>(operands.qkv), static_cast<T*>(operands.out),
           operands.log_sum_exp);
  });
}

void plain_attention_backward(const AttentionProblem& problem, const AttentionOperands& operands,
                              cudaStream_t stream) {
  dispatch_width(problem.dim, operands.dtype, [&](auto tag, auto width) {
    using T = typename decltype(tag)::type;
    const auto start = [&](auto kernel, int heads) {
      launch(kernel, grid_of(problem, heads), dim3(32 * kPlainWarps), 0, stream, problem,
             static_cast<const T*>(operands.qkv), static_cast<const T*>(operands.dout), operands.log_sum_exp,
             operands.delta, static_cast<T*>(operands.dqkv));
    };
    start(key_value_gradient_kernel<T, width()>, problem.key_value_heads);
    start(plain_query_gradient_kernel<T, width()>, problem.query_heads);
  });
}

void attention_delta(const AttentionProblem& problem, const AttentionOperands& operands,
                     cudaStream_t stream) {
  dispatch_width(problem.dim, operands.dtype, [&](auto tag, auto width) {
    using T = typename decltype(tag)::type;
    launch(delta_kernel<T, width()>, grid_of(problem, problem.query_heads), dim3(32 * kPlainWarps), 0, stream,
           problem, static_cast<const T*>(operands.dout), static_cast<const T*>(operands.out),
           operands.delta);
  });
}

}  // namespace llampi::device::cuda
