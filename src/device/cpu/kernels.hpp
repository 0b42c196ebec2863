// SPDX-License-Identifier: Apache-2.0
// The loops of the CPU device over one row or one range, in float32, one thread: everything but the matrix
// products. They are compiled once per instruction set and chosen at run time; an element's (a row's) result
// does not depend on its alignment, on its neighbours or on the length of the range that it is part of. None
// of them throws or allocates.
#pragma once

#include <cstdint>
#include <vector>

namespace llampi::device {

/// Factors of one AdamW step, rounded to float32; see kernels_update.cpp for the formula.
struct AdamWFactors {
  float clip, decay, beta1, rest1, beta2, rest2, inverse_root2, eps, step;
};

/// The arrays of one AdamW step, of equal length; `shard` may be `master`.
struct AdamWArrays {
  const float* gradient;
  float *master, *exp_avg, *exp_avg_sq, *shard;
};

/// A row of op::RmsNormBackward.
struct RmsNormRow {
  const float *dy, *x, *weight;
  float inverse_rms;
  bool add_dx;  ///< dx holds something to which the gradient is added
  float* dx;
  double* dweight;     ///< may be nullptr
  float* y = nullptr;  ///< that of rms_norm(), once more; may be nullptr
};

/// Where the random bits of a stochastic rounding come from, as op::AdamW defines it.
struct RoundingKey {
  std::uint64_t parameter;      ///< UpdateRange::rounding_key
  std::uint32_t step, operand;  ///< the last two words of the counter
  std::uint64_t first_element;  ///< the logical element of the first value
};

/// Where normal numbers come from: a RandomStream of core/philox.hpp, and the index of the first.
struct NormalSource {
  std::uint64_t key, purpose, first;
};

/// A sum of squares: (low + high * 2^kLowBits) * 2^unit.
struct PieceOfSquares {
  static constexpr int kLowBits = 48;
  std::int64_t low, high;
  int unit;
  std::int32_t left_out;  ///< largest bits of the magnitudes that were too small for this unit; 0: none
};

/// Elements of a gradient that an update takes at a time; buffers of as many stay in the first cache.
inline constexpr std::int64_t kUpdatePiece = 1024;

/// A row of scores of attention has this many elements more in memory than it has keys, at most: whole
/// vectors fit.
inline constexpr std::int64_t kRowPadding = 16;

struct Kernels {
  using Index = std::int64_t;

  const char* name;  ///< "AVX-512 (x86-64-v4)"

  /// y = e^x
  void (*exp)(Index n, const float* x, float* y);
  /// y += x
  void (*add)(Index n, const float* x, float* y);
  /// y *= factor
  void (*scale)(Index n, float factor, float* y);
  /// sum of a b, in float64
  double (*dot)(Index n, const float* a, const float* b);

  /// y = x weight / rms; returns 1 / rms, rms = sqrt(mean(x^2) + eps)
  float (*rms_norm)(Index n, const float* x, const float* weight, double eps, float* y);
  /// dx = (add_dx ? dx : 0) + gradient; dweight += dy x inverse_rms, unless it is nullptr
  void (*rms_norm_backward)(Index n, const RmsNormRow& row);
  /// Rotates `heads` heads of 2 `half` elements by the angles with these cosines and sines, or back
  /// (direction -1).
  void (*rope)(Index heads, Index half, const float* cosines, const float* sines, float direction,
               float* row);
  /// activated = silu(gate) up
  void (*swiglu)(Index n, const float* gate, const float* up, float* activated);
  /// gate and up become their gradients. @param activated as swiglu() writes it, once more; may be nullptr
  void (*swiglu_backward)(Index n, const float* dactivated, float* gate, float* up, float* activated);

  /// scores[0, valid) become e^(score - largest), the others up to `total` zero. Writes log(sum(e^score)) and
  /// 1 / sum of the row. Touches the row up to the next multiple of kRowPadding.
  void (*softmax)(Index valid, Index total, float* scores, float* log_sum_exp, float* inverse_sum);
  /// p = scores in, softmax out; dp = its gradient in, that of the scores out; both zero from `valid` to
  /// `total`.
  void (*softmax_backward)(Index valid, Index total, float log_sum_exp, float delta, float* p, float* dp);

  /// -log softmax(logits)[label]
  double (*cross_entropy)(Index n, const float* logits, Index label);
  /// The same; logits become the gradient times `factor`.
  double (*cross_entropy_backward)(Index n, float* logits, Index label, double factor);

  /// Largest bits of |x|, as op::SumSquares orders them.
  std::int32_t (*max_magnitude)(Index n, const float* x);
  /// Of the elements whose magnitude is not above that with the bits `most`, which is finite. n <= kUpdatePiece.
  PieceOfSquares (*sum_squares)(Index n, const float* x, std::int32_t most);
  void (*adamw)(Index n, const AdamWFactors& factors, const AdamWArrays& arrays);

  // The 16-bit formats, as bits; the arithmetic is that of core/half.hpp, but NaN may differ in its payload.
  void (*from_bfloat16)(Index n, const std::uint16_t* x, float* y);
  void (*to_bfloat16)(Index n, const float* x, std::uint16_t* y);
  void (*from_float16)(Index n, const std::uint16_t* x, float* y);
  void (*to_float16)(Index n, const float* x, std::uint16_t* y);
  /// y = the upper halves of (bits of x + 16 random bits): the two neighbours of x, each as likely as it is
  /// near. What bfloat16 holds stays as it is, NaN stays NaN.
  void (*round_bfloat16)(Index n, const float* x, const RoundingKey& key, std::uint16_t* y);

  /// y = standard normal numbers times `deviation`, rounded to float32; the same bits in each variant.
  void (*normal)(Index n, const NormalSource& source, double deviation, float* y);
};

/// Variants that this program has and this machine can run, the fastest first; the last is the generic one.
/// They live as long as the program.
std::vector<const Kernels*> available_kernels();

}  // namespace llampi::device
