// SPDX-License-Identifier: Apache-2.0
// The memory that operations need besides their operands: pure functions of shapes, so that a plan needs no
// device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "llampi/core/tensor.hpp"

namespace llampi::device {

inline constexpr std::int64_t kMostGpuHeadDim = 256;  ///< elements of a head, as far as GPUs have kernels
/// The longest rows of RMSNorm that GPUs have kernels for: 16384 elements of 16 bits, 8192 in float32 and where a row is not
/// whole vectors of 8.
constexpr std::int64_t most_gpu_hidden(std::int64_t hidden, DType dtype) {
  return size_of(dtype) == 2 && hidden % 8 == 0 ? 16384 : 8192;
}
/// @throws UserError for larger heads or rows
void require_gpu_kernels(std::int64_t head_dim, std::int64_t hidden, DType dtype);

/// The heads of an attention; a row of `qkv` holds Hq query heads, then Hkv key heads, then Hkv value heads,
/// each of D.
struct AttentionShape {
  std::int64_t query_heads = 0;
  std::int64_t key_value_heads = 0;
  std::int64_t head_dim = 0;
  /// Sliding window (Mistral, arXiv 2310.06825): query i sees key j where i - j < window; 0: all keys up to itself.
  std::int64_t window = 0;

  std::int64_t query_cols() const { return query_heads * head_dim; }
  std::int64_t key_value_cols() const { return key_value_heads * head_dim; }
  std::int64_t qkv_cols() const { return query_cols() + 2 * key_value_cols(); }
  /// The first key that the query at this position sees.
  std::int64_t first_key(std::int64_t query) const {
    return window > 0 ? std::max<std::int64_t>(0, query - window + 1) : 0;
  }
  /// On average over the queries of a document of `length` tokens; the diagonal counts half.
  double keys_of_query(double length) const {
    const auto reach = static_cast<double>(window);
    return window > 0 && reach < length ? reach - reach * reach / (2 * length) : length / 2;
  }
  /// Floating-point operations of the forward pass over documents of `length` tokens: two products of each query with the keys that it sees.
  double forward_flops(double tokens, double length) const {
    return 4 * tokens * keys_of_query(length) * static_cast<double>(query_cols());
  }
};

/// Launches of cuDNN's deterministic gradients of the attention of so many sequences, each of some of them or of some key/value
/// heads of one, where dP, the gradient of the probabilities, may take `attention_room` bytes (cuda/attention_sizes.hpp). 0: there is
/// no room for that of one key/value head.
std::int64_t attention_pieces(AttentionShape shape, std::int64_t sequences, std::int64_t seq_len,
                              std::int64_t attention_room);

/// What the logits of a chunk of rows may take on a GPU where nothing else is asked for: 4096 rows of Llama 3's vocabulary in
/// 16 bits. The gradient of the head's weight is read and written once per chunk: short chunks cost time (with 512 rows its
/// product is bound by memory on an H100).
inline constexpr std::int64_t kLogitsBytes = std::int64_t{1} << 30;

/// In bytes. `dtype` is that of the activations.
class OperationSizes {
 public:
  virtual ~OperationSizes() = default;
  /// Memory that the device's operations share for the whole run; given to it by Operations::set_workspace().
  virtual std::int64_t shared_workspace() const { return 0; }
  /// Whether micro-batches are copied to allocate_host() memory before they travel: where copies from other
  /// memory hold the host up, and a captured step reads them always at the same place.
  virtual bool stages_inputs() const { return false; }
  /// `max_seqlen` is the largest number of tokens of a document.
  virtual std::int64_t attention_workspace(AttentionShape shape, std::int64_t tokens, std::int64_t max_seqlen,
                                           DType dtype) const = 0;
  /// @param attention_room bytes that may be taken beyond what any kernels need, for the gradients of the
  /// probabilities, with which cuDNN's deterministic ones are faster; see cuda/attention_sizes.hpp
  virtual std::int64_t attention_backward_workspace(AttentionShape shape, std::int64_t tokens,
                                                    std::int64_t max_seqlen, DType dtype,
                                                    std::int64_t attention_room) const = 0;
  virtual std::int64_t rms_norm_backward_workspace(std::int64_t tokens, std::int64_t hidden,
                                                   DType dtype) const = 0;
  /// Of op::QkvTransformGradients.
  virtual std::int64_t qkv_transform_backward_workspace(AttentionShape /*shape*/, std::int64_t /*tokens*/,
                                                        DType /*dtype*/) const {
    return 0;
  }
  /// See op::Fp8Product.
  virtual std::int64_t fp8_product_workspace(std::int64_t /*m*/, std::int64_t /*n*/,
                                             std::int64_t /*k*/) const {
    return 0;
  }
  /// Also the bound on what is ever stored of the [tokens, vocabulary] logits.
  /// @param logits_bytes that the logits of a chunk of rows may take, but one row is always a chunk. CPUs, whose chunks fit
  /// their caches, take no notice.
  virtual std::int64_t linear_cross_entropy_workspace(std::int64_t tokens, std::int64_t vocabulary,
                                                      DType dtype, std::int64_t logits_bytes) const = 0;
  /// With kLogitsBytes, for models that say nothing else in their operations. `hidden` decides nothing.
  std::int64_t linear_cross_entropy_workspace(std::int64_t tokens, std::int64_t /*hidden*/,
                                              std::int64_t vocabulary, DType dtype) const {
    return linear_cross_entropy_workspace(tokens, vocabulary, dtype, kLogitsBytes);
  }
};

}  // namespace llampi::device
