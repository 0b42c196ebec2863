// SPDX-License-Identifier: Apache-2.0
// Causal attention. The scores of a block of queries with all keys before its end are in memory at a time;
// the backward pass makes them again from the saved log-sum-exp (Dao et al., arXiv 2205.14135, algorithm 4,
// with whole rows in place of tiles).
#include <algorithm>
#include <cmath>

#include "device/cpu/cpu_device.hpp"
#include "device/cpu/parallel.hpp"

namespace llampi::device {
namespace {

constexpr std::int64_t kBlock = CpuSizes::kQueryBlock;

const std::int32_t* checked_segments(const Batch& batch, std::int64_t longest) {
  const std::int32_t* offsets =
      integers(batch.segment_offsets, batch.segment_offsets.cols, "segment_offsets");
  require(batch.segments < batch.segment_offsets.cols, "more segments than offsets");
  require(offsets[0] == 0 && offsets[batch.segments] == batch.tokens.cols,
          "segments do not cover the tokens");
  for (std::int64_t i = 0; i < batch.segments; ++i) {
    require(offsets[i] <= offsets[i + 1] && offsets[i + 1] - offsets[i] <= longest,
            "segment longer than announced");
  }
  return offsets;
}

/// One query head of one segment: where its rows start, and how far they are apart.
struct Head {
  const float *query, *key, *value;
  std::int64_t stride;  ///< of the three
  std::int64_t length;  ///< tokens of the segment
  std::int64_t dim;
  float scale;
};

Head head_of(const float* qkv, AttentionShape shape, std::int64_t head, std::int64_t begin,
             std::int64_t end) {
  const std::int64_t stride = shape.qkv_cols(), dim = shape.head_dim;
  const std::int64_t group = head / (shape.query_heads / shape.key_value_heads);
  const float* row = qkv + begin * stride;
  const float* key = row + shape.query_cols() + group * dim;
  return {row + head * dim,
          key,
          key + shape.key_value_cols(),
          stride,
          end - begin,
          dim,
          static_cast<float>(1 / std::sqrt(static_cast<double>(dim)))};
}

/// rows x keys: alpha a b^T, both with `dim` columns.
Product against_keys(float alpha, const float* a, std::int64_t stride_a, const float* b,
                     std::int64_t stride_b, std::int64_t rows, std::int64_t keys, std::int64_t dim, float* c,
                     std::int64_t stride_c) {
  return {.transpose_b = true,
          .m = rows,
          .n = keys,
          .k = dim,
          .alpha = alpha,
          .a = a,
          .stride_a = stride_a,
          .b = b,
          .stride_b = stride_b,
          .c = c,
          .stride_c = stride_c};
}

/// rows x dim: alpha weights b, with weights [rows, keys].
Product over_keys(float alpha, const float* weights, std::int64_t stride, const float* b,
                  std::int64_t stride_b, std::int64_t rows, std::int64_t keys, std::int64_t dim, float* c,
                  std::int64_t stride_c) {
  return {.m = rows,
          .n = dim,
          .k = keys,
          .alpha = alpha,
          .a = weights,
          .stride_a = stride,
          .b = b,
          .stride_b = stride_b,
          .c = c,
          .stride_c = stride_c};
}

/// keys x dim: beta c + alpha weights^T b, with weights [rows, keys].
Product over_rows(float alpha, const float* weights, std::int64_t stride, const float* b,
                  std::int64_t stride_b, std::int64_t rows, std::int64_t keys, std::int64_t dim, float beta,
                  float* c, std::int64_t stride_c) {
  return {.transpose_a = true,
          .m = keys,
          .n = dim,
          .k = rows,
          .alpha = alpha,
          .a = weights,
          .stride_a = stride,
          .b = b,
          .stride_b = stride_b,
          .beta = beta,
          .c = c,
          .stride_c = stride_c};
}

}  // namespace

void CpuDevice::attention(const Batch& batch, std::int64_t longest, AttentionShape shape, Tensor qkv_,
                          Tensor out_, Tensor log_sum_exp_, Tensor workspace) {
  const std::int64_t tokens = batch.tokens.cols, out_stride = shape.query_cols();
  const std::int32_t* offsets = checked_segments(batch, longest);
  const float* qkv = floats(qkv_, tokens, shape.qkv_cols(), "qkv");
  float* out = floats(out_, tokens, out_stride, "out");
  float* log_sum_exp = floats(log_sum_exp_, shape.query_heads, tokens, "log_sum_exp");
  const std::int64_t stride = CpuSizes::score_stride(longest);
  auto* scratch = static_cast<float*>(
      workspace_of(workspace, sizes_.attention_workspace(shape, tokens, longest, DType::float32)));

  parallel_items(threads_, batch.segments * shape.query_heads, [&](std::int64_t item, int thread) {
    const std::int64_t segment = item / shape.query_heads, head_index = item % shape.query_heads;
    const std::int64_t begin = offsets[segment];
    const Head head = head_of(qkv, shape, head_index, begin, offsets[segment + 1]);
    float* scores = scratch + thread * CpuSizes::score_elements(longest);
    float* sums = log_sum_exp + head_index * tokens + begin;
    for (std::int64_t first = 0; first < head.length; first += kBlock) {
      const std::int64_t rows = std::min(kBlock, head.length - first), keys = first + rows;
      float inverse_sum[kBlock];
      gemm_.serial(against_keys(head.scale, head.query + first * head.stride, head.stride, head.key,
                                head.stride, rows, keys, head.dim, scores, stride));
      for (std::int64_t i = 0; i < rows; ++i) {
        kernels_.softmax(first + i + 1, keys, scores + i * stride, &sums[first + i], &inverse_sum[i]);
      }
      float* block = out + (begin + first) * out_stride + head_index * head.dim;
      gemm_.serial(
          over_keys(1, scores, stride, head.value, head.stride, rows, keys, head.dim, block, out_stride));
      for (std::int64_t i = 0; i < rows; ++i)
        kernels_.scale(head.dim, inverse_sum[i], block + i * out_stride);
    }
  });
  gemm_.check();
  progress();
}

// The same blocks of queries; keys and values come from the cache.
void CpuDevice::attention_cached(const Batch& batch, AttentionShape shape, Tensor qkv_, Tensor cache_,
                                 Tensor out_, Tensor workspace) {
  const std::int64_t tokens = batch.tokens.cols, past = batch.past, context = cache_.rows,
                     dim = shape.head_dim;
  const std::int64_t width = 2 * shape.key_value_cols(), stride = shape.qkv_cols(),
                     out_stride = shape.query_cols();
  require(past >= 0 && past + tokens <= context, "more tokens than the cache has rows");
  const float* qkv = floats(qkv_, tokens, stride, "qkv");
  float* cache = floats(cache_, context, width, "cache");
  float* out = floats(out_, tokens, out_stride, "out");
  auto* scratch = static_cast<float*>(
      workspace_of(workspace, sizes_.attention_workspace(shape, tokens, context, DType::float32)));
  for (std::int64_t t = 0; t < tokens; ++t)
    std::copy_n(qkv + t * stride + shape.query_cols(), width, cache + (past + t) * width);

  parallel_items(threads_, shape.query_heads, [&](std::int64_t head, int thread) {
    const float* key = cache + head / (shape.query_heads / shape.key_value_heads) * dim;
    const float* value = key + shape.key_value_cols();
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
    const std::int64_t score_stride = CpuSizes::score_stride(context);
    float* scores = scratch + thread * CpuSizes::score_elements(context);
    for (std::int64_t first = 0; first < tokens; first += kBlock) {
      const std::int64_t rows = std::min(kBlock, tokens - first), keys = past + first + rows;
      float inverse_sum[kBlock], log_sum = 0;
      gemm_.serial(against_keys(scale, qkv + first * stride + head * dim, stride, key, width, rows, keys, dim,
                                scores, score_stride));
      for (std::int64_t i = 0; i < rows; ++i)
        kernels_.softmax(past + first + i + 1, keys, scores + i * score_stride, &log_sum, &inverse_sum[i]);
      float* block = out + first * out_stride + head * dim;
      gemm_.serial(over_keys(1, scores, score_stride, value, width, rows, keys, dim, block, out_stride));
      for (std::int64_t i = 0; i < rows; ++i) kernels_.scale(dim, inverse_sum[i], block + i * out_stride);
    }
  });
  gemm_.check();
  progress();
}

// One thread has a key/value head of a segment with all its queries, so that dK and dV are summed in one
// order: query heads forwards, blocks of queries backwards, as the first then reaches, and overwrites, all
// keys.
void CpuDevice::attention_backward(const Batch& batch, std::int64_t longest, AttentionShape shape,
                                   Tensor dout_, Tensor qkv_, Tensor out_, Tensor log_sum_exp_, Tensor dqkv_,
                                   Tensor workspace) {
  const std::int64_t tokens = batch.tokens.cols, out_stride = shape.query_cols();
  const std::int64_t group_heads = shape.query_heads / shape.key_value_heads;
  const std::int32_t* offsets = checked_segments(batch, longest);
  const float* dout = floats(dout_, tokens, out_stride, "dout");
  const float* qkv = floats(qkv_, tokens, shape.qkv_cols(), "qkv");
  const float* out = floats(out_, tokens, out_stride, "out");
  const float* log_sum_exp = floats(log_sum_exp_, shape.query_heads, tokens, "log_sum_exp");
  float* dqkv = floats(dqkv_, tokens, shape.qkv_cols(), "dqkv");
  const std::int64_t stride = CpuSizes::score_stride(longest);
  auto* scratch = static_cast<float*>(
      workspace_of(workspace, sizes_.attention_backward_workspace(shape, tokens, longest, DType::float32)));

  parallel_items(threads_, batch.segments * shape.key_value_heads, [&](std::int64_t item, int thread) {
    const std::int64_t segment = item / shape.key_value_heads, group = item % shape.key_value_heads;
    const std::int64_t begin = offsets[segment];
    float* p = scratch + thread * 2 * CpuSizes::score_elements(longest);
    float* dp = p + CpuSizes::score_elements(longest);
    float accumulate = 0;
    for (std::int64_t head_index = group * group_heads; head_index < (group + 1) * group_heads;
         ++head_index) {
      const Head head = head_of(qkv, shape, head_index, begin, offsets[segment + 1]);
      const std::int64_t blocks = (head.length + kBlock - 1) / kBlock;
      for (std::int64_t first = (blocks - 1) * kBlock; first >= 0; first -= kBlock) {
        const std::int64_t rows = std::min(kBlock, head.length - first), keys = first + rows, dim = head.dim;
        const std::int64_t out_offset = (begin + first) * out_stride + head_index * dim;
        const float* query = head.query + first * head.stride;
        const float* dblock = dout + out_offset;
        gemm_.serial(
            against_keys(head.scale, query, head.stride, head.key, head.stride, rows, keys, dim, p, stride));
        gemm_.serial(
            against_keys(1, dblock, out_stride, head.value, head.stride, rows, keys, dim, dp, stride));
        for (std::int64_t i = 0; i < rows; ++i) {
          const double delta = kernels_.dot(dim, dblock + i * out_stride, out + out_offset + i * out_stride);
          kernels_.softmax_backward(first + i + 1, keys, log_sum_exp[head_index * tokens + begin + first + i],
                                    static_cast<float>(delta), p + i * stride, dp + i * stride);
        }
        float* dquery = dqkv + (query - qkv);
        float* dkey = dqkv + (head.key - qkv);
        float* dvalue = dqkv + (head.value - qkv);
        gemm_.serial(
            over_keys(head.scale, dp, stride, head.key, head.stride, rows, keys, dim, dquery, head.stride));
        gemm_.serial(over_rows(head.scale, dp, stride, query, head.stride, rows, keys, dim, accumulate, dkey,
                               head.stride));
        gemm_.serial(
            over_rows(1, p, stride, dblock, out_stride, rows, keys, dim, accumulate, dvalue, head.stride));
        accumulate = 1;
      }
    }
  });
  gemm_.check();
  progress();
}

}  // namespace llampi::device
