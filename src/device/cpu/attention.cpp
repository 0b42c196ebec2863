// SPDX-License-Identifier: Apache-2.0
// Causal attention. The scores of a block of queries with all keys before its end are in memory at a time;
// the backward pass makes them again from the saved log-sum-exp (Dao et al., arXiv 2205.14135, algorithm 4,
// with whole rows in place of tiles).
#include <algorithm>
#include <cmath>
#include <limits>

#include "device/cpu/cpu_device.hpp"
#include "device/cpu/parallel.hpp"

#include "llampi/core/integers.hpp"

namespace llampi::device {
namespace {

constexpr std::int64_t kBlock = CpuSizes::kQueryBlock;

const std::int32_t* checked_offsets(const Documents& documents, std::int64_t tokens) {
  const std::int32_t* offsets = integers(documents.cu_seqlens, documents.cu_seqlens.cols, "cu_seqlens");
  require(documents.count < documents.cu_seqlens.cols, "more documents than offsets");
  require(offsets[0] == 0 && offsets[documents.count] == tokens, "documents do not cover the tokens");
  for (std::int64_t i = 0; i < documents.count; ++i) {
    require(offsets[i] <= offsets[i + 1] && offsets[i + 1] - offsets[i] <= documents.max_seqlen,
            "document longer than announced");
  }
  return offsets;
}

/// One query head of one document: where its rows start, and how far they are apart.
struct Head {
  const float *query, *key, *value;
  std::int64_t stride;  ///< of the three
  std::int64_t length;  ///< tokens of the document
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

/// What the products of a block of queries have in common.
struct Block {
  std::int64_t rows;  ///< queries
  std::int64_t keys;  ///< that they see
  std::int64_t dim;
};

/// The keys that a block of queries sees: those from `begin` on, up to its last query.
struct Keys {
  AttentionShape shape;
  std::int64_t first_query, rows;
  std::int64_t begin = shape.first_key(first_query);
  std::int64_t count = first_query + rows - begin;

  /// The scores of keys that query `i` of the block sees no more become -infinity. Returns how many keys, from `begin` on,
  /// it may see.
  std::int64_t mask(std::int64_t i, float* scores) const {
    std::fill_n(scores, shape.first_key(first_query + i) - begin, -std::numeric_limits<float>::infinity());
    return first_query + i + 1 - begin;
  }
};

/// Rows of a matrix, `stride` elements from one to the next.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
};

/// c [rows, keys] = alpha a b^T, both with `dim` columns.
Product against_keys(const Block& block, float alpha, Rows<const float> a, Rows<const float> b,
                     Rows<float> c) {
  return {.transpose_b = true,
          .m = block.rows,
          .n = block.keys,
          .k = block.dim,
          .alpha = alpha,
          .a = a.data,
          .stride_a = a.stride,
          .b = b.data,
          .stride_b = b.stride,
          .c = c.data,
          .stride_c = c.stride};
}

/// c [rows, dim] = alpha weights b, with weights [rows, keys].
Product over_keys(const Block& block, float alpha, Rows<const float> weights, Rows<const float> b,
                  Rows<float> c) {
  return {.m = block.rows,
          .n = block.dim,
          .k = block.keys,
          .alpha = alpha,
          .a = weights.data,
          .stride_a = weights.stride,
          .b = b.data,
          .stride_b = b.stride,
          .c = c.data,
          .stride_c = c.stride};
}

/// c [keys, dim] = beta c + alpha weights^T b, with weights [rows, keys].
Product over_rows(const Block& block, float alpha, Rows<const float> weights, Rows<const float> b, float beta,
                  Rows<float> c) {
  return {.transpose_a = true,
          .m = block.keys,
          .n = block.dim,
          .k = block.rows,
          .alpha = alpha,
          .a = weights.data,
          .stride_a = weights.stride,
          .b = b.data,
          .stride_b = b.stride,
          .beta = beta,
          .c = c.data,
          .stride_c = c.stride};
}

}  // namespace

void CpuDevice::execute(const op::Attention& o) {
  const std::int64_t tokens = o.qkv.rows, longest = o.documents.max_seqlen, out_stride = o.shape.query_cols();
  const std::int32_t* offsets = checked_offsets(o.documents, tokens);
  const float* qkv = floats(o.qkv, tokens, o.shape.qkv_cols(), "qkv");
  float* out = floats(o.out, tokens, out_stride, "out");
  float* log_sum_exp = floats(o.log_sum_exp, o.shape.query_heads, tokens, "log_sum_exp");
  const std::int64_t stride = CpuSizes::score_stride(longest);
  auto* scratch = static_cast<float*>(
      workspace_of(o.workspace, sizes_.attention_workspace(o.shape, tokens, longest, DType::float32)));

  parallel_items(threads_, o.documents.count * o.shape.query_heads, [&](std::int64_t item, int thread) {
    const std::int64_t document = item / o.shape.query_heads, head_index = item % o.shape.query_heads;
    const std::int64_t begin = offsets[document];
    const Head head = head_of(qkv, o.shape, head_index, begin, offsets[document + 1]);
    float* scores = scratch + thread * CpuSizes::score_elements(longest);
    float* sums = log_sum_exp + head_index * tokens + begin;
    for (std::int64_t first = 0; first < head.length; first += kBlock) {
      const std::int64_t rows = std::min(kBlock, head.length - first);
      const Keys keys{o.shape, first, rows};
      const Block products{rows, keys.count, head.dim};
      const std::int64_t skipped = keys.begin * head.stride;
      float inverse_sum[kBlock];
      gemm_.serial(against_keys(products, head.scale, {head.query + first * head.stride, head.stride},
                                {head.key + skipped, head.stride}, {scores, stride}));
      for (std::int64_t i = 0; i < rows; ++i) {
        float* const row = scores + i * stride;
        kernels_.softmax(keys.mask(i, row), keys.count, row, &sums[first + i], &inverse_sum[i]);
      }
      float* block = out + (begin + first) * out_stride + head_index * head.dim;
      gemm_.serial(
          over_keys(products, 1, {scores, stride}, {head.value + skipped, head.stride}, {block, out_stride}));
      for (std::int64_t i = 0; i < rows; ++i)
        kernels_.scale(head.dim, inverse_sum[i], block + i * out_stride);
    }
  });
  gemm_.check();
}

// The same blocks of queries; keys and values come from the cache.
void CpuDevice::execute(const op::CachedAttention& o) {
  const std::int64_t tokens = o.qkv.rows, kv_len = o.kv_len, context = o.kv_cache.rows,
                     dim = o.shape.head_dim;
  const std::int64_t width = 2 * o.shape.key_value_cols(), stride = o.shape.qkv_cols(),
                     out_stride = o.shape.query_cols();
  require(kv_len >= 0 && kv_len + tokens <= context, "more tokens than the cache has rows");
  const float* qkv = floats(o.qkv, tokens, stride, "qkv");
  float* cache = floats(o.kv_cache, context, width, "cache");
  float* out = floats(o.out, tokens, out_stride, "out");
  auto* scratch = static_cast<float*>(
      workspace_of(o.workspace, sizes_.attention_workspace(o.shape, tokens, context, DType::float32)));
  for (std::int64_t t = 0; t < tokens; ++t)
    std::copy_n(qkv + t * stride + o.shape.query_cols(), width, cache + (kv_len + t) * width);

  parallel_items(threads_, o.shape.query_heads, [&](std::int64_t head, int thread) {
    const float* key = cache + head / (o.shape.query_heads / o.shape.key_value_heads) * dim;
    const float* value = key + o.shape.key_value_cols();
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
    const std::int64_t score_stride = CpuSizes::score_stride(context);
    float* scores = scratch + thread * CpuSizes::score_elements(context);
    for (std::int64_t first = 0; first < tokens; first += kBlock) {
      const std::int64_t rows = std::min(kBlock, tokens - first);
      const Keys keys{o.shape, kv_len + first, rows};
      const Block products{rows, keys.count, dim};
      const std::int64_t skipped = keys.begin * width;
      float inverse_sum[kBlock], log_sum = 0;
      gemm_.serial(against_keys(products, scale, {qkv + first * stride + head * dim, stride},
                                {key + skipped, width}, {scores, score_stride}));
      for (std::int64_t i = 0; i < rows; ++i) {
        float* const row = scores + i * score_stride;
        kernels_.softmax(keys.mask(i, row), keys.count, row, &log_sum, &inverse_sum[i]);
      }
      float* block = out + first * out_stride + head * dim;
      gemm_.serial(
          over_keys(products, 1, {scores, score_stride}, {value + skipped, width}, {block, out_stride}));
      for (std::int64_t i = 0; i < rows; ++i) kernels_.scale(dim, inverse_sum[i], block + i * out_stride);
    }
  });
  gemm_.check();
}

// One thread has a key/value head of a document with all its queries, so that dK and dV are summed in one
// order: query heads forwards, blocks of queries backwards, as the first then reaches, and overwrites, all
// keys; with a window it does not, so zeros are there first.
void CpuDevice::execute(const op::AttentionBackward& o) {
  const std::int64_t tokens = o.qkv.rows, longest = o.documents.max_seqlen, out_stride = o.shape.query_cols();
  const std::int64_t group_heads = o.shape.query_heads / o.shape.key_value_heads;
  const std::int32_t* offsets = checked_offsets(o.documents, tokens);
  const float* dout = floats(o.dout, tokens, out_stride, "dout");
  const float* qkv = floats(o.qkv, tokens, o.shape.qkv_cols(), "qkv");
  const float* out = floats(o.out, tokens, out_stride, "out");
  const float* log_sum_exp = floats(o.log_sum_exp, o.shape.query_heads, tokens, "log_sum_exp");
  float* dqkv = floats(o.dqkv, tokens, o.shape.qkv_cols(), "dqkv");
  const std::int64_t stride = CpuSizes::score_stride(longest);
  auto* scratch = static_cast<float*>(workspace_of(
      o.workspace, sizes_.attention_backward_workspace(o.shape, tokens, longest, DType::float32, 0)));

  parallel_items(threads_, o.documents.count * o.shape.key_value_heads, [&](std::int64_t item, int thread) {
    const std::int64_t document = item / o.shape.key_value_heads, group = item % o.shape.key_value_heads;
    const std::int64_t begin = offsets[document];
    float* p = scratch + thread * 2 * CpuSizes::score_elements(longest);
    float* dp = p + CpuSizes::score_elements(longest);
    float accumulate = 0;
    if (o.shape.window > 0) {
      const std::int64_t key_column = o.shape.query_cols() + group * o.shape.head_dim;
      for (std::int64_t t = begin; t < offsets[document + 1]; ++t) {
        float* const dkey = dqkv + t * o.shape.qkv_cols() + key_column;
        std::fill_n(dkey, o.shape.head_dim, 0.0F);
        std::fill_n(dkey + o.shape.key_value_cols(), o.shape.head_dim, 0.0F);
      }
      accumulate = 1;
    }
    for (std::int64_t head_index = group * group_heads; head_index < (group + 1) * group_heads;
         ++head_index) {
      const Head head = head_of(qkv, o.shape, head_index, begin, offsets[document + 1]);
      const std::int64_t blocks = ceil_div(head.length, kBlock);
      for (std::int64_t first = (blocks - 1) * kBlock; first >= 0; first -= kBlock) {
        const std::int64_t rows = std::min(kBlock, head.length - first), dim = head.dim;
        const Keys keys{o.shape, first, rows};
        const float *const key = head.key + keys.begin * head.stride, *const value = head.value +
                                                                                     keys.begin * head.stride;
        const std::int64_t out_offset = (begin + first) * out_stride + head_index * dim;
        const float* query = head.query + first * head.stride;
        const float* dblock = dout + out_offset;
        const Block products{rows, keys.count, dim};
        gemm_.serial(
            against_keys(products, head.scale, {query, head.stride}, {key, head.stride}, {p, stride}));
        gemm_.serial(against_keys(products, 1, {dblock, out_stride}, {value, head.stride}, {dp, stride}));
        for (std::int64_t i = 0; i < rows; ++i) {
          const double delta = kernels_.dot(dim, dblock + i * out_stride, out + out_offset + i * out_stride);
          kernels_.softmax_backward(keys.mask(i, p + i * stride), keys.count,
                                    log_sum_exp[head_index * tokens + begin + first + i],
                                    static_cast<float>(delta), p + i * stride, dp + i * stride);
        }
        float* dquery = dqkv + (query - qkv);
        float* dkey = dqkv + (key - qkv);
        float* dvalue = dqkv + (value - qkv);
        gemm_.serial(
            over_keys(products, head.scale, {dp, stride}, {key, head.stride}, {dquery, head.stride}));
        gemm_.serial(over_rows(products, head.scale, {dp, stride}, {query, head.stride}, accumulate,
                               {dkey, head.stride}));
        gemm_.serial(
            over_rows(products, 1, {p, stride}, {dblock, out_stride}, accumulate, {dvalue, head.stride}));
        accumulate = 1;
      }
    }
  });
  gemm_.check();
}

}  // namespace llampi::device
