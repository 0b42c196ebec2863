// SPDX-License-Identifier: Apache-2.0
// A low-rank adapter of a matrix product: LoRA (Hu et al., arXiv 2106.09685), with dropout of its input.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "llampi/core/tensor.hpp"

namespace llampi::device {

/// Which elements of a matrix x [T, C] are dropped. A pure function of the stream, of the sample that a token belongs to, of
/// its place in it and of the column, so that nothing is stored, and neither the number of ranks nor recomputation changes it.
///
/// Token t of the micro-batch is number n = first_sample * seq_len + t of the run. Element c of its row has the 16 bits from
/// bit 16 (c mod 8) on of one block of Philox4x32-10 (core/philox.hpp), counted from the lowest bit of its first word. The
/// block's key is `key`, the upper half of its counter `purpose`, the lower half n * ceil(C / 8) + c / 8. The element is
/// dropped if these 16 bits are less than dropout_threshold(), and otherwise multiplied by dropout_factor().
struct Dropout {
  double probability = 0;  ///< in [0, 1); 0: nothing is dropped, and the other members do not count
  std::uint64_t key = 0, purpose = 0;
  /// int32 [1, 2]: the lower and upper word of the number, in the run, of the micro-batch's first sample. Negative: nothing is
  /// dropped (evaluation, generation).
  Tensor first_sample = {};
  std::int64_t seq_len = 0;  ///< tokens of a sample
  Tensor dropped = {};       ///< [T, C], scratch, in the dtype of x
};

/// Of 65536: how many values of 16 bits drop an element.
inline std::uint32_t dropout_threshold(double probability) {
  return static_cast<std::uint32_t>(std::min<std::int64_t>(std::llround(probability * 65536), 65535));
}
/// What is kept is multiplied by it, so that the mean stays.
inline double dropout_factor(double probability) {
  return 65536.0 / (65536.0 - dropout_threshold(probability));
}

/// To y = x weight^T: y[:, first .. first + out) += u b^T with u = scale drop(x) a^T.
/// Backward, with dy those columns of the gradient of y: db (+)= dy^T u, du = scale dy b, da (+)= du^T drop(x),
/// dx += drop(du a). Sums are float32 or better; all but da and db are rounded to the dtype of x, y and dx by each addition.
struct LowRank {
  Tensor a;                ///< [r, in]
  Tensor b;                ///< [out, r]
  Tensor u;                ///< [T, r]: written forward, read backward
  std::int64_t first = 0;  ///< column of y
  double scale = 1;
  Dropout dropout = {};
  // Backward only.
  Tensor du = {};           ///< [T, r]: written by op::InputGradient, read by op::WeightGradient
  Tensor da = {}, db = {};  ///< gradients of weights, as a dweight is; either may be empty
  Accumulate accumulate_da = Accumulate::no, accumulate_db = Accumulate::no;
};

}  // namespace llampi::device
