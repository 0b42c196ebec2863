// SPDX-License-Identifier: Apache-2.0
// Scratch memory of the CPU device's operations: how it is cut, for `sizes` and for the operations alike.
#pragma once

#include <algorithm>
#include <cstdint>

#include "llampi/device/operation_sizes.hpp"

namespace llampi::device {

class CpuSizes final : public OperationSizes {
 public:
  explicit CpuSizes(int threads) : threads_(threads) {}
  std::int64_t attention_workspace(AttentionShape shape, std::int64_t tokens, std::int64_t longest,
                                   DType dtype) const override;
  std::int64_t attention_backward_workspace(AttentionShape shape, std::int64_t tokens, std::int64_t longest,
                                            DType dtype, std::int64_t attention_room) const override;
  std::int64_t rms_norm_backward_workspace(std::int64_t tokens, std::int64_t hidden,
                                           DType dtype) const override;
  std::int64_t linear_cross_entropy_workspace(std::int64_t tokens, std::int64_t vocabulary, DType dtype,
                                              std::int64_t logits_bytes) const override;

  /// Sums of two norms' gradients, float64 [threads, 2, D].
  std::int64_t qkv_transform_backward_workspace(AttentionShape shape, std::int64_t tokens,
                                                DType dtype) const override;

  std::int64_t fp8_product_workspace(std::int64_t m, std::int64_t n, std::int64_t k) const override {
    return (std::min(m, kFp8Rows) + std::min(n, kFp8Rows)) * k * size_of(DType::float32);
  }

  /// Rows of an operand of op::Fp8Product that are float32 at a time.
  static constexpr std::int64_t kFp8Rows = 512;
  /// Queries whose scores are computed at a time. Fewer waste less above the diagonal, more make better
  /// products.
  static constexpr std::int64_t kQueryBlock = 64;
  /// Elements from one row of scores to the next.
  static std::int64_t score_stride(std::int64_t longest);
  /// Scores of one block of queries.
  static std::int64_t score_elements(std::int64_t longest) { return kQueryBlock * score_stride(longest); }
  /// Rows of logits in memory at a time.
  static std::int64_t head_rows(std::int64_t tokens, std::int64_t vocabulary);

 private:
  int threads_;
};

}  // namespace llampi::device
