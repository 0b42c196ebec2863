// SPDX-License-Identifier: Apache-2.0
// The native attention kernels: causal inside each document and window, grouped queries, memory linear in the tokens.
//
//   attention_forward.cu, attention_backward.cu   tensor cores: bfloat16, float16, heads of up to 128
//   attention_plain.cu                            any dtype, heads of up to 256; not fast
//   attention_tile.cuh                            tiles in shared memory, products of a warp
// With f(i) = i - min(positions[i], reach), the first token of the document of token i that its window holds: key j is
// visible to query i if f(i) <= j <= i. f never falls, so the keys of a run of queries are a run, and so are the queries of
// a run of keys.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/cuda/kernels.cuh"
#include "llampi/device/operations.hpp"

namespace llampi::device::cuda {

inline constexpr int kMaximumDim = kMostGpuHeadDim;  ///< of a head
/// Of the kernels without tensor cores: warps of a block, columns of a head that a lane of a warp has.
inline constexpr int kPlainWarps = 4, kLaneColumns = kMaximumDim / 32;

/// Passed to kernels by value.
struct AttentionProblem {
  const std::int32_t* positions = nullptr;  ///< [T]
  int tokens = 0, query_heads = 0, key_value_heads = 0, dim = 0;
  int group = 0;  ///< query heads of a key/value head
  int reach = 0;  ///< so many keys before itself a query sees at most
  /// Gradients of documents of at most so many tokens are not asked for: blocks leave tiles alone that have none of others.
  int not_asked = 0;
  float scale = 0;
  std::int64_t qkv_stride = 0, out_stride = 0;  ///< elements from row to row, of gradients too

  /// First column of a head, in a row of qkv; of a query head also in a row of the output.
  __host__ __device__ int query_column(int head) const { return head * dim; }
  __host__ __device__ int key_column(int key_value_head) const {
    return (query_heads + key_value_head) * dim;
  }
  __host__ __device__ int value_column(int key_value_head) const {
    return (query_heads + key_value_heads + key_value_head) * dim;
  }

  __device__ int document_begin(int token) const { return token - positions[token]; }
  /// Whether the token's document has more than `not_asked` tokens: then the token so many behind its first is its own.
  __device__ bool is_asked(int token) const {
    const int other = document_begin(token) + not_asked;
    return other < tokens && positions[other] == not_asked;
  }
  __device__ int first_key(int query) const { return query - min(positions[query], reach); }
  /// Where the tile of so many tokens begins that has the first key: tiles begin where a document does, so that
  /// the bits of a document do not depend on what lies beside it.
  __device__ int first_tile(int query, int tile) const {
    const int position = positions[query];
    return query - position + max(position - reach, 0) / tile * tile;
  }
};

/// @throws Error if native kernels do not take heads of so many elements
void check_head_dim(std::int64_t head_dim);

/// @throws Error likewise, or for positions that are no [1, T] int32
AttentionProblem attention_problem(const Documents& documents, AttentionShape shape);

/// Operands of both directions. T: dtype; dqkv and the like null in the forward direction.
struct AttentionOperands {
  DType dtype = DType::bfloat16;
  const void* qkv = nullptr;     ///< T [T, (Hq + 2 Hkv) D]
  void* out = nullptr;           ///< T [T, Hq D]
  float* log_sum_exp = nullptr;  ///< [Hq, T]
  const void* dout = nullptr;    ///< T [T, Hq D]
  void* dqkv = nullptr;          ///< T [T, (Hq + 2 Hkv) D]
  float* delta = nullptr;        ///< [Hq, T], as attention_delta() leaves it
};

/// Whether the tensor-core kernels take it.
bool fits_tensor_cores(const AttentionProblem& problem, DType dtype);

void tensor_attention(const AttentionProblem& problem, const AttentionOperands& operands,
                      cudaStream_t stream);
/// @param shared_bytes that a block of this GPU can have
void tensor_attention_backward(const AttentionProblem& problem, const AttentionOperands& operands,
                               std::size_t shared_bytes, cudaStream_t stream);

void plain_attention(const AttentionProblem& problem, const AttentionOperands& operands, cudaStream_t stream);
void plain_attention_backward(const AttentionProblem& problem, const AttentionOperands& operands,
                              cudaStream_t stream);

/// delta[h, t] = sum over d of dout[t, h, d] out[t, h, d]: what softmax's gradient takes off each row.
void attention_delta(const AttentionProblem& problem, const AttentionOperands& operands, cudaStream_t stream);

}  // namespace llampi::device::cuda
