// SPDX-License-Identifier: Apache-2.0
// The numeric operations of a Llama at fusion grain: one struct of operands for each, and the interface that takes
// them and that each device implements.
//
// Conventions
//   T tokens of a micro-batch, H hidden size, F feed-forward size, V vocabulary, D head dimension, Hq query
//   heads, Hkv key/value heads (Hq is a multiple of Hkv). Query head h reads key/value head h / (Hq / Hkv).
//   Weights are [out, in] as in PyTorch's Linear; activations are [T, features]; all contiguous, row-major.
//   Floating-point operands of one operation have one dtype, except where a comment says otherwise.
//   Statistics, scalars and accumulation are float32 or better. A device refuses (throws Error) a dtype that
//   it has no kernels for. `Accumulate::no` overwrites an output whatever it holds, NaN included;
//   `Accumulate::yes` adds to it. Operations allocate nothing: scratch memory is passed as `workspace`, whose
//   size OperationSizes gives. A gradient of a weight (dweight, dtable) is float32, on GPUs also in the dtype
//   of the activations: then each operation rounds it to that dtype, the head's once per chunk of rows. One
//   that is an empty Tensor is not computed: the weight is frozen. Pointers point to device memory. All
//   operations are issued on Stream::compute, or where they say `on` there, in order, and are asynchronous: a
//   device may return before they are done. Equal inputs give equal bits on the same device with the same number
//   of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <variant>

#include "llampi/core/philox.hpp"
#include "llampi/core/tensor.hpp"
#include "llampi/device/length_classes.hpp"
#include "llampi/device/low_rank.hpp"
#include "llampi/device/operation_sizes.hpp"
#include "llampi/device/runtime.hpp"

namespace llampi::device {

/// The documents of a micro-batch: runs of tokens that see each other, a part of a sequence or a whole one.
struct Documents {
  Tensor cu_seqlens;            ///< int32 [1, T + 1]; document i has the tokens [i], ..., [i + 1] - 1
  Tensor positions;             ///< int32 [1, T], within the document
  std::int64_t count = 0;       ///< so the first count + 1 entries of cu_seqlens count
  std::int64_t max_seqlen = 0;  ///< no document is longer; the workspace was sized with it
  LengthClasses lengths = {};   ///< no class has more documents than it says, if it says anything
};

/// The numbers of an update that are another in each step. In device memory, so that a step that was captured
/// can be replayed with other values.
struct UpdateScalars {
  double step = 0;              ///< number of the update, for stochastic rounding
  double learning_rate = 0;     ///< of this step
  double bias_correction1 = 1;  ///< 1 - beta1^t
  double bias_correction2 = 1;  ///< 1 - beta2^t
  double clip_coefficient = 1;  ///< written by FinishNorm; divided by the loss scale
  double grad_norm = 0;         ///< written by FinishNorm; before clipping, of the unscaled gradient
};

/// Of casts to 8 bits, in device memory.
struct Fp8Counts {
  std::int64_t saturated = 0;    ///< elements that were infinite and became the largest number
  std::int64_t zero_scales = 0;  ///< tensors without any finite magnitude but zero
};

/// Elements [begin, end) of a shard that are real (no padding) and are updated with the same settings.
struct UpdateRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  double weight_decay = 0;
  double learning_rate_factor = 1;
  std::uint64_t rounding_key = 0;  ///< of the parameter, for stochastic rounding
  std::int64_t first_element = 0;  ///< logical element of the parameter that stands at `begin`
};

/// The operations. What is read stands before what is written.
namespace op {

/// x[t] = table[tokens[t]]
struct Embedding {
  static constexpr const char* kName = "embedding";
  Tensor tokens;  ///< int32 [1, T], ids
  Tensor table;   ///< [V, H]
  Tensor x;       ///< [T, H]
};

/// dtable[v] (+)= sum over t with tokens[t] = v of dx[t], in order of t.
struct EmbeddingBackward {
  static constexpr const char* kName = "embedding_backward";
  Tensor tokens;  ///< int32 [1, T], ids
  Tensor dx;      ///< [T, H]
  Tensor dtable;  ///< [V, H]
  Accumulate accumulate_dtable;
};

/// RMSNorm (Zhang & Sennrich, arXiv 1910.07467): y = x * inverse_rms * weight,
/// inverse_rms = 1/sqrt(mean(x^2) + eps).
struct RmsNorm {
  static constexpr const char* kName = "rms_norm";
  Tensor x;       ///< [T, H]
  Tensor weight;  ///< [1, H]
  double eps;
  Tensor y;             ///< [T, H]; may be empty where `maximum` is not: then it is only measured
  Tensor inverse_rms;   ///< [1, T], float32 (float64 if x is)
  Tensor maximum = {};  ///< as op::Fp8Maximum, of y; may be empty
};

/// dx (+)= gradient with respect to x; with Accumulate::yes `dx` holds the gradient of the residual branch
/// on entry. dweight (+)= sum over t of dy * x * inverse_rms.
struct RmsNormBackward {
  static constexpr const char* kName = "rms_norm_backward";
  Tensor dy;           ///< [T, H]
  Tensor x;            ///< [T, H]
  Tensor weight;       ///< [1, H]
  Tensor inverse_rms;  ///< [1, T], as RmsNorm left it
  Tensor dx;           ///< [T, H]
  Accumulate accumulate_dx;
  Tensor dweight;  ///< [1, H]
  Accumulate accumulate_dweight;
  Tensor workspace;
  Tensor maximum = {};  ///< as op::Fp8Maximum, of dx after the addition; may be empty
  Tensor y = {};  ///< [T, H]: that of RmsNorm once more, the same bits; may be empty. Not with `maximum`
};

/// What the rows of q, k and v go through between their product and RoPE, in some models. What is empty is not
/// there; a bias and norms exclude each other.
struct QkvTransform {
  Tensor bias = {};  ///< [1, Hq D + 2 Hkv D], added to each row (Qwen2)
  /// [1, D] each, RMSNorm of each query head and of each key head (Qwen3): both or neither.
  Tensor q_norm = {}, k_norm = {};
  double eps = 0;       ///< of the norms
  Tensor product = {};  ///< [T, Hq D + 2 Hkv D], with norms: the product, which the backward pass reads again
  Tensor inverse_rms =
      {};  ///< [T, Hq + Hkv], with norms: as in RmsNorm, of each head; float32 (float64 if x is)

  bool has_norms() const { return static_cast<bool>(q_norm); }
  explicit operator bool() const { return bias || q_norm; }
};

/// The gradients of a QkvTransform's weights; those that are empty are not computed.
struct QkvTransformGradients {
  Tensor bias = {};  ///< [1, Hq D + 2 Hkv D] (+)= the sum over t of the gradient of the product
  Accumulate accumulate_bias = Accumulate::no;
  Tensor q_norm = {}, k_norm = {};  ///< [1, D] (+)= sums over t and heads
  Accumulate accumulate_q_norm = Accumulate::no, accumulate_k_norm = Accumulate::no;
  Tensor workspace = {};  ///< OperationSizes::qkv_transform_backward_workspace()
};

/// qkv = x weight^T, then RoPE (Su et al., arXiv 2104.09864; the half-rotated layout of Hugging Face) on the
/// query and key heads: with c = rope[pos][0][j], s = rope[pos][1][j], j < D/2:
///   (a[j], a[j + D/2]) -> (a[j] c - a[j + D/2] s, a[j + D/2] c + a[j] s).
struct QkvRope {
  static constexpr const char* kName = "qkv_rope";
  Tensor positions;  ///< int32 [1, T]
  Tensor x;          ///< [T, H]
  Tensor weight;     ///< [Hq D + 2 Hkv D, H]
  Tensor rope;       ///< [positions, D] = D/2 cosines, then D/2 sines, float32 (float64 if x is)
  AttentionShape shape;
  Tensor qkv;                              ///< [T, Hq D + 2 Hkv D]
  QkvTransform transform = {};             ///< before RoPE; `product` and `inverse_rms` are written
  std::span<const LowRank> adapters = {};  ///< of the product, so they add before the transform and RoPE
};

/// Causal attention inside each document and shape.window, scale 1/sqrt(D). Never stores a document x document matrix.
struct Attention {
  static constexpr const char* kName = "attention";
  Documents documents;
  AttentionShape shape;
  Tensor qkv;          ///< [T, Hq D + 2 Hkv D]
  Tensor out;          ///< [T, Hq D]
  Tensor log_sum_exp;  ///< [Hq, T] of the scaled scores, float32 (float64 if qkv is)
  Tensor workspace;
};

struct AttentionBackward {
  static constexpr const char* kName = "attention_backward";
  Documents documents;
  AttentionShape shape;
  Tensor dout;         ///< [T, Hq D]
  Tensor qkv;          ///< [T, Hq D + 2 Hkv D]
  Tensor out;          ///< [T, Hq D], as Attention left it
  Tensor log_sum_exp;  ///< [Hq, T], likewise
  Tensor dqkv;         ///< [T, Hq D + 2 Hkv D], overwritten
  Tensor workspace;
  std::int64_t attention_room = 0;  ///< with which the workspace was sized
};

/// Attention of the next T tokens of a sequence with a KV cache of kv_len tokens: their keys and values are written
/// to rows [kv_len, kv_len + T) of `kv_cache`, C >= kv_len + T; query t sees rows [shape.first_key(kv_len + t), kv_len + t].
/// No gradient. The workspace is that of Attention with `max_seqlen` = C.
struct CachedAttention {
  static constexpr const char* kName = "cached_attention";
  std::int64_t kv_len;
  AttentionShape shape;
  Tensor qkv;       ///< [T, Hq D + 2 Hkv D]
  Tensor kv_cache;  ///< [C, 2 Hkv D]; a row is keys, then values
  Tensor out;       ///< [T, Hq D]
  Tensor workspace;
};

/// y = residual + x weight^T
struct ProjectionResidual {
  static constexpr const char* kName = "projection_residual";
  Tensor x;         ///< [T, in]
  Tensor weight;    ///< [out, in]
  Tensor residual;  ///< [T, out]
  Tensor y;         ///< [T, out]; may be residual
  std::span<const LowRank> adapters = {};
};

/// dx = dy weight: what a product y = x weight^T leaves to its input. Needs no x.
struct InputGradient {
  static constexpr const char* kName = "input_gradient";
  Tensor dy;      ///< [T, out]
  Tensor weight;  ///< [out, in]
  Tensor dx;      ///< [T, in]
  /// dx has their part as well; their du and db are written.
  std::span<const LowRank> adapters = {};
};

/// dweight (+)= dy^T x, after InputGradient.
struct WeightGradient {
  static constexpr const char* kName = "weight_gradient";
  Tensor dy;       ///< [T, out]
  Tensor x;        ///< [T, in]
  Tensor dweight;  ///< [out, in]
  Accumulate accumulate_dweight;
  std::span<const LowRank> adapters = {};  ///< their da is written, from du as InputGradient left it
};

/// SwiGLU (Shazeer, arXiv 2002.05202): gate_up = x weight^T, activated = silu(gate) * up.
struct GateUpSwiglu {
  static constexpr const char* kName = "gate_up_swiglu";
  Tensor x;                                ///< [T, H]
  Tensor weight;                           ///< [2F, H] = gate rows, then up rows
  Tensor gate_up;                          ///< [T, 2F]
  Tensor activated;                        ///< [T, F]
  std::span<const LowRank> adapters = {};  ///< of the product, so they add before SwiGLU
};

/// activated = silu(gate) * up, from gate_up; the bits of GateUpSwiglu.
struct Swiglu {
  static constexpr const char* kName = "swiglu";
  Tensor gate_up;       ///< [T, 2F]
  Tensor activated;     ///< [T, F]
  Tensor maximum = {};  ///< as op::Fp8Maximum, of activated; may be empty
};

/// loss_sum += sum over valid labels of -log softmax(x weight^T)[label], chunk by chunk: no more of the
/// logits is stored than `workspace` holds. Of rows without a label nothing is computed: those with one are packed first.
/// With `valid_labels` a device that does not see the labels knows how many there are at most; 0: it computes all rows.
struct LinearCrossEntropy {
  static constexpr const char* kName = "linear_cross_entropy";
  Tensor labels;  ///< int32 [1, T], ids; -1 where there is no valid label
  Tensor x;       ///< [T, H]
  Tensor weight;  ///< [V, H]
  double* loss_sum;
  Tensor workspace;
  std::int64_t logits_bytes = kLogitsBytes;  ///< with which the workspace was sized
  std::int64_t valid_labels = 0;             ///< no fewer than there are; else the loss is not a number
};

/// The same, and at once the gradients of loss_sum * inverse_tokens: dx = ..., dweight (+)= ...
struct LinearCrossEntropyBackward {
  static constexpr const char* kName = "linear_cross_entropy_backward";
  Tensor labels;  ///< int32 [1, T], ids; -1 where there is no valid label
  Tensor x;       ///< [T, H]
  Tensor weight;  ///< [V, H]
  const double* inverse_tokens;
  double* loss_sum;
  Tensor dx;       ///< [T, H]
  Tensor dweight;  ///< [V, H]
  Accumulate accumulate_dweight;
  Tensor workspace;
  std::int64_t logits_bytes = kLogitsBytes;  ///< as above: the chunks decide the order of the sums of dweight
  std::int64_t valid_labels = 0;             ///< as above
};

/// Rows of x that have logits: at most those with a label, if they are counted.
template <class Loss>
std::int64_t rows_with_logits(const Loss& loss) {
  return loss.valid_labels > 0 ? loss.valid_labels : loss.x.rows;
}

// Products in 8 bits (DType::float8_*, core/float8.hpp). Each tensor has one scale, a power of two: it is multiplied
// by it before it is cast, and the product by its inverse. A scale is as Fp8Scaling::tensor; a maximum is
// int32 [1, 1]: the bits, as float32, of the largest finite magnitude of the tensor rounded to bfloat16, 0 for a
// tensor of zeros. `Fp8Counts` are counted over all casts since they were set to zero.
//
// Operations whose output such a product reads can measure it as they write it: their `maximum`, unless it is empty, is
// then what op::Fp8Maximum of that output, as it is written, would leave there. Where nothing else reads the output, they
// can measure it without writing it, and an operation that ends in `Cast` computes it again from the same operands, with
// the same bits, and casts it.
//
// Scales of blocks instead (Fp8Scaling, as in DeepSeek-V3, arXiv 2412.19437, 3.3.2, but powers of two): weights have one
// for each block of 128 x 128; activations and gradients one for each tile of 1 x 128, along the rows of the matrix and
// of its transpose, which so are rounded differently. Sides are multiples of 128, and each scale follows from the largest
// finite magnitude of its block as that of a tensor does.

/// maximum = max(maximum, |bfloat16(x)|) over the finite elements x of source.
struct Fp8Maximum {
  static constexpr const char* kName = "fp8_maximum";
  Tensor source;   ///< float32 or bfloat16 (the reference: float64), any shape
  Tensor maximum;  ///< read and written
};

/// scales[i] from maxima[i]: float8_scale_exponent() of DType::float8_e4m3fn. For sharded weights, which no rank holds entirely.
struct Fp8Scales {
  static constexpr const char* kName = "fp8_scales";
  Tensor maxima;  ///< int32 [1, n]
  Tensor scales;  ///< float32 [n, 4]
};

/// Each element is rounded to bfloat16, multiplied by the scale that follows from `maximum`, and cast by
/// to_float8(): NaN stays NaN, infinity becomes the largest number and is counted.
struct Fp8Cast {
  static constexpr const char* kName = "fp8_cast";
  Tensor source;      ///< [R, C], float32 or bfloat16 (the reference: float64)
  Tensor maximum;     ///< as Fp8Maximum left it
  Tensor values;      ///< [R, C], one of the 8-bit dtypes; may be empty
  Tensor transposed;  ///< [C, R], likewise and in that dtype; may be empty
  Tensor scale;       ///< written; may be empty
  Fp8Counts* counts;  ///< added to; nullptr: nothing is counted
};

/// Of y of op::RmsNorm, as it would have been written.
struct RmsNormCast {
  static constexpr const char* kName = "rms_norm_cast";
  Tensor x;            ///< [T, H], a dtype that Fp8Cast takes; so are the sources of the two below
  Tensor weight;       ///< [1, H]
  Tensor inverse_rms;  ///< [1, T], as RmsNorm left it
  Fp8Cast cast;        ///< its source is empty: y
};

/// Of what op::SwigluBackward would have written over gate_up.
struct SwigluBackwardCast {
  static constexpr const char* kName = "swiglu_backward_cast";
  Tensor dactivated;  ///< [T, F]
  Tensor gate_up;     ///< [T, 2F]
  Fp8Cast cast;       ///< its source is empty: the gradient of gate_up
};

/// Of what op::Rope, backward and without a transform, would have written over qkv.
struct RopeBackwardCast {
  static constexpr const char* kName = "rope_backward_cast";
  Tensor positions;  ///< int32 [1, T]
  Tensor rope;       ///< as QkvRope
  AttentionShape shape;
  Tensor qkv;    ///< [T, Hq D + 2 Hkv D]
  Fp8Cast cast;  ///< its source is empty: qkv, rotated back
};

/// transposed[c, r] = source[r, c]
struct Fp8Transpose {
  static constexpr const char* kName = "fp8_transpose";
  Tensor source;      ///< [R, C], one of the 8-bit dtypes
  Tensor transposed;  ///< [C, R]
};

/// maxima[r, c] = max(maxima[r, c], |bfloat16(x)|) over the finite elements x of block [r, c] of a weight that are in
/// source: any part of it, row by row.
struct Fp8BlockMaximum {
  static constexpr const char* kName = "fp8_block_maximum";
  Tensor source;       ///< float32 or bfloat16 (the reference: float64), [1, n]
  std::int64_t first;  ///< number of its first element in the weight
  Tensor maxima;       ///< int32 [R / 128, C / 128] of a weight [R, C], read and written
};

/// The scales of a weight and of its transpose from the maxima of its blocks, for DType::float8_e4m3fn. Padding of a
/// row is 1.
struct Fp8BlockScales {
  static constexpr const char* kName = "fp8_block_scales";
  Tensor maxima;             ///< int32 [R / 128, C / 128]
  Tensor scales;             ///< fp8_scale_shape(blocks, R, C)
  Tensor transposed_scales;  ///< fp8_scale_shape(blocks, C, R)
};

/// As Fp8Cast, of a part of a weight, with the scale that follows from each block's maximum.
struct Fp8BlockCast {
  static constexpr const char* kName = "fp8_block_cast";
  Tensor source;       ///< as Fp8BlockMaximum
  std::int64_t first;  ///< likewise
  Tensor maxima;       ///< as Fp8BlockMaximum left them
  Tensor values;       ///< [1, n], float8_e4m3fn
  Fp8Counts* counts;   ///< added to, a weight of zeros as one; nullptr: nothing is counted
};

/// Measures and casts a matrix and its transpose, each with a scale for each tile of 1 x 128 of its rows.
struct Fp8TileCast {
  static constexpr const char* kName = "fp8_tile_cast";
  Tensor source;             ///< [R, C], float32 or bfloat16 (the reference: float64)
  Tensor values;             ///< [R, C], one of the 8-bit dtypes; may be empty
  Tensor scales;             ///< fp8_scale_shape(tiles, R, C); with `values`
  Tensor transposed;         ///< [C, R], likewise and in that dtype; may be empty
  Tensor transposed_scales;  ///< fp8_scale_shape(tiles, C, R); with `transposed`
  /// int32 [1, 2], scratch: zeros before, {the largest magnitude's bits, anything} after
  Tensor maximum;
  Fp8Counts* counts;  ///< added to; nullptr: nothing is counted
};

/// y (+)= a b^T (+ residual) of what a and b were before they were cast, with float32 sums: both operands are read row by
/// row over K, as the tensor cores of Hopper want them. M, N and K are multiples of 16. At most one of a and b is
/// float8_e5m2. Either both have one scale each, or neither has: then M, N and K are multiples of 128, and at most one
/// has scales of blocks.
struct Fp8Product {
  static constexpr const char* kName = "fp8_product";
  Tensor a, a_scale;  ///< [M, K]; fp8_scaling_of()
  Tensor b, b_scale;  ///< [N, K]; likewise
  Tensor residual;    ///< [M, N] in the dtype of y, which it may be; empty: none. Not with Accumulate::yes
  Tensor y;           ///< [M, N]
  Accumulate accumulate_y;
  /// Partial sums may be kept in fewer bits (14 of the fraction, on Hopper). Only where no gradient is formed, and both
  /// have one scale each.
  bool fast_accumulation;
  Tensor workspace;  ///< OperationSizes::fp8_product_workspace()
};

/// What QkvRope does after its product, in place or, where norms read it, from transform.product; `backward`: from the gradient of
/// qkv to that of the product, in place.
struct Rope {
  static constexpr const char* kName = "rope";
  Tensor positions;  ///< int32 [1, T]
  Tensor rope;       ///< as QkvRope
  AttentionShape shape;
  bool backward;
  Tensor qkv;                   ///< [T, Hq D + 2 Hkv D], overwritten
  Tensor maximum = {};          ///< as op::Fp8Maximum, of all of qkv, the value heads included; may be empty
  QkvTransform transform = {};  ///< as QkvRope; `backward`: as it was left
  QkvTransformGradients dtransform = {};  ///< `backward` only
  bool writes = true;  ///< false, only without a transform: qkv stays, and is only measured
};

/// gate_up is overwritten with its gradient, given that of silu(gate) * up.
struct SwigluBackward {
  static constexpr const char* kName = "swiglu_backward";
  Tensor dactivated;    ///< [T, F]
  Tensor gate_up;       ///< [T, 2F], overwritten
  Tensor maximum = {};  ///< as op::Fp8Maximum, of the gradient of gate_up; may be empty
  bool writes = true;   ///< false: gate_up stays, and its gradient is only measured
  /// [T, F]: silu(gate) * up once more, the bits of GateUpSwiglu; may be empty. Only with `writes`, not with `maximum`.
  Tensor activated = {};
};

/// u of each adapter alone, as the operation that it belongs to writes it: what a recomputation needs of a product whose result it
/// does not.
struct LowRankDown {
  static constexpr const char* kName = "low_rank_down";
  Tensor x;  ///< [T, in]
  std::span<const LowRank> adapters;
};

/// y = x weight^T
struct Linear {
  static constexpr const char* kName = "linear";
  Tensor x;       ///< [T, in]
  Tensor weight;  ///< [out, in]
  Tensor y;       ///< [T, out]
};

/// destination += source; equal shapes.
struct Add {
  static constexpr const char* kName = "add";
  Tensor source;
  Tensor destination;
};

/// Equal dtypes and numbers of elements.
struct Copy {
  static constexpr const char* kName = "copy";
  Tensor source;
  Tensor destination;
};

/// Between floating-point dtypes, elements in order; narrowing rounds to nearest even, equal dtypes are
/// copied. The CPU device casts between float32 and the 16-bit formats. From DType::int8_blocks to floating-point
/// dtypes: the product of integer and scale, in float32, is rounded likewise.
struct Cast {
  static constexpr const char* kName = "cast";
  Tensor source;
  Tensor destination;
};

/// Bytes are set to zero.
struct Zero {
  static constexpr const char* kName = "zero";
  Tensor destination;
};

/// out[i] = standard_deviation * stream.normal(first + i), [1, n]: the same bits on every device, rounded to
/// float32 and then to the dtype of `out` (float32, bfloat16 or float16; the reference keeps float64).
struct RandomNormal {
  static constexpr const char* kName = "random_normal";
  RandomStream stream;
  std::int64_t first;
  double standard_deviation;
  Tensor out;
};

// The global gradient norm is rounded at its end only: squares are summed as integers (sum_of_squares.hpp), so it does not
// depend on how the elements are spread over ranks, units or threads. A gradient is float32 or bfloat16, in AdamW too; bfloat16
// counts as the float32 that it widens to.

/// sum += the squares of `ranges` of `gradient`; maximum = max(maximum, |x|) over them. If one of them is not finite, that is
/// all that the sum tells.
struct SumSquares {
  static constexpr const char* kName = "sum_squares";
  Tensor gradient;
  std::span<const UpdateRange> ranges;
  Tensor sum;  ///< int64 [1, kSumOfSquaresNumbers]
  /// int32 [1, 1]: the bits of a non-negative float32, which order as the floats do; NaN counts as the largest.
  Tensor maximum;
};

/// From the sum over all ranks: scalars->grad_norm, and clip_coefficient = min(1, max_norm / (norm
/// + 1e-6)), or 1 if max_norm is 0; the norm is that of the gradient / loss_scale, and clip_coefficient is
/// divided by loss_scale. Not finite if any gradient is not.
struct FinishNorm {
  static constexpr const char* kName = "finish_norm";
  Tensor sum;  ///< as SumSquares left it
  double max_norm;
  const double* loss_scale;
  UpdateScalars* scalars;
};

/// AdamW (Loshchilov & Hutter, arXiv 1711.05101) in one pass over `ranges` of a shard: gradients are
/// multiplied by clip_coefficient; decoupled decay, bias correction, eps added to the corrected root, as
/// torch.optim.AdamW:
///   p -= lr wd p;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
///   p -= (lr / c1) m / (sqrt(v) / sqrt(c2) + eps).
/// Arithmetic is float32 whatever the dtypes; the step uses the moments before they are rounded. Does nothing
/// if grad_norm is not finite.
///
/// A master or moments in bfloat16 are rounded stochastically: 16 random bits are added below the bits that
/// are kept, so that the mean is right; NaN stays NaN. For logical element e = first_element + (i - begin)
/// they are the 16 bits from bit 16 (e mod 8) on of one block of Philox4x32-10 (core/philox.hpp), counted
/// from the lowest bit of its first word. The block's key is rounding_key (lower word, upper word); its
/// counter is {lower word of e / 8, upper word of e / 8, step, Rounded}.
struct AdamW {
  static constexpr const char* kName = "adamw";
  /// What is rounded.
  enum class Rounded : std::uint32_t { master, exp_avg, exp_avg_sq };
  Tensor gradient;  ///< float32 or bfloat16
  std::span<const UpdateRange> ranges;
  double beta1;
  double beta2;
  double eps;
  const UpdateScalars* scalars;
  Tensor master;      ///< float32 or bfloat16, read and written; so are the moments
  Tensor exp_avg;     ///< m
  Tensor exp_avg_sq;  ///< v
  /// float32, bfloat16 or float16: receives the new parameters as `master` keeps them, rounded to nearest
  /// even; may be `master` itself.
  Tensor shard;
};

}  // namespace op

using Operation =
    std::variant<op::Embedding, op::EmbeddingBackward, op::RmsNorm, op::RmsNormBackward, op::QkvRope,
                 op::Attention, op::AttentionBackward, op::CachedAttention, op::ProjectionResidual,
                 op::InputGradient, op::WeightGradient, op::GateUpSwiglu, op::Swiglu, op::LinearCrossEntropy,
                 op::LinearCrossEntropyBackward, op::Fp8Maximum, op::Fp8Scales, op::Fp8Cast, op::RmsNormCast,
                 op::SwigluBackwardCast, op::RopeBackwardCast, op::Fp8BlockMaximum, op::Fp8BlockScales,
                 op::Fp8BlockCast, op::Fp8TileCast, op::Fp8Transpose, op::Fp8Product, op::Rope,
                 op::SwigluBackward, op::LowRankDown, op::Linear, op::Add, op::Copy, op::Cast, op::Zero,
                 op::RandomNormal, op::SumSquares, op::FinishNorm, op::AdamW>;

/// "rms_norm_backward"
inline const char* name_of(const Operation& operation) {
  return std::visit([](const auto& o) { return o.kName; }, operation);
}

class Operations {
 public:
  /// Is given each operation, and `issue`, which issues it.
  using Decorator = std::function<void(const Operation& operation, const std::function<void()>& issue)>;

  virtual ~Operations() = default;
  virtual const OperationSizes& sizes() const = 0;
  /// sizes().shared_workspace() bytes, before the first operation; they stay the device's.
  virtual void set_workspace(Tensor /*workspace*/) {}

  /// Issues an operation: run(op::Linear{.x = x, .weight = weight, .y = y}).
  /// @throws Error if this device has none, or an operand has a dtype or shape that it has no kernels for
  void run(const Operation& operation) {
    if (!decorator_) return issue(operation);
    decorator_(operation, [&] { issue(operation); });
  }
  /// Makes what run() would make of such an operation at its first use and keep, so that this one is as fast
  /// as others: kernels that a library compiles for these shapes. Operands are neither read nor written.
  virtual void prepare(const Operation& /*operation*/) {}
  /// From now on operations go through `decorator`, which may time, count, check, or let them fail; an empty
  /// one ends that.
  void decorate(Decorator decorator) { decorator_ = std::move(decorator); }

 protected:
  virtual void issue(const Operation& operation) = 0;

 private:
  Decorator decorator_;
};

}  // namespace llampi::device
