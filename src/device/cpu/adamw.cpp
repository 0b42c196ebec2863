// SPDX-License-Identifier: Apache-2.0
// AdamW over the ranges of a shard. There is one kernel, in float32; what is kept in 16 bits passes through
// float32 buffers of a piece, which stay in the first cache.
#include <algorithm>
#include <cmath>

#include "device/cpu/gradient.hpp"
#include "device/cpu/parallel.hpp"

namespace llampi::device {
namespace {

using Rounded = op::AdamW::Rounded;

/// The rest of the step's arithmetic is float32; its factors are computed in float64 and rounded once.
AdamWFactors factors(const UpdateRange& range, const op::AdamW& o) {
  const UpdateScalars& scalars = *o.scalars;
  const double lr = scalars.learning_rate * range.learning_rate_factor;
  const auto round = [](double value) { return static_cast<float>(value); };
  return {.clip = round(scalars.clip_coefficient),
          .decay = round(lr * range.weight_decay),
          .beta1 = round(o.beta1),
          .rest1 = round(1 - o.beta1),
          .beta2 = round(o.beta2),
          .rest2 = round(1 - o.beta2),
          .inverse_root2 = round(1 / std::sqrt(scalars.bias_correction2)),
          .eps = round(o.eps),
          .step = round(lr / scalars.bias_correction1)};
}

/// float32, or else bfloat16, or (if it may be) float16.
void check_dtype(const Tensor& tensor, bool may_be_float16, const char* name) {
  const bool known = tensor.dtype == DType::float32 || tensor.dtype == DType::bfloat16 ||
                     (may_be_float16 && tensor.dtype == DType::float16);
  if (!known) {
    throw Error(
        fmt::format("this device has no kernels for AdamW with {} in {}", name, to_string(tensor.dtype)));
  }
}

/// The elements from `first` on of a tensor that AdamW reads and writes in float32: in place if that is its
/// dtype, else in a buffer.
class Operand {
 public:
  Operand(const Kernels& kernels, const Tensor& tensor, std::int64_t first, std::int64_t n)
      : kernels_(kernels), n_(n), narrow_(tensor.dtype == DType::bfloat16) {
    if (narrow_) {
      half_ = halves(tensor) + first;
      kernels_.from_bfloat16(n_, half_, buffer_);
    } else {
      wide_ = static_cast<float*>(tensor.data) + first;
    }
  }
  float* data() { return narrow_ ? buffer_ : wide_; }
  void store(const RoundingKey& key) {
    if (narrow_) kernels_.round_bfloat16(n_, buffer_, key, half_);
  }
  /// What was stored, in float32.
  const float* stored() {
    if (narrow_) kernels_.from_bfloat16(n_, half_, buffer_);
    return data();
  }

 private:
  const Kernels& kernels_;
  std::int64_t n_;
  bool narrow_;
  std::uint16_t* half_ = nullptr;
  float* wide_ = nullptr;
  alignas(64) float buffer_[kUpdatePiece];
};

struct Step {
  const Kernels& kernels;
  AdamWFactors factors;
  std::uint64_t rounding_key;
  std::uint32_t number;
  Tensor gradient, master, exp_avg, exp_avg_sq, shard;

  RoundingKey key(Rounded operand, std::int64_t element) const {
    return {rounding_key, number, static_cast<std::uint32_t>(operand), static_cast<std::uint64_t>(element)};
  }

  bool all_float32() const {
    return gradient.dtype == DType::float32 && master.dtype == DType::float32 &&
           exp_avg.dtype == DType::float32 && exp_avg_sq.dtype == DType::float32 &&
           shard.dtype == DType::float32;
  }

  void update_float32(std::int64_t first, std::int64_t n) const {
    const auto from = [first](const Tensor& tensor) { return static_cast<float*>(tensor.data) + first; };
    kernels.adamw(n, factors, {from(gradient), from(master), from(exp_avg), from(exp_avg_sq), from(shard)});
  }

  /// n elements, at most kUpdatePiece, of which the first is `element` of its parameter.
  void update_piece(std::int64_t first, std::int64_t n, std::int64_t element) const {
    const GradientPiece g(kernels, gradient, first, n);
    Operand p(kernels, master, first, n), m(kernels, exp_avg, first, n), v(kernels, exp_avg_sq, first, n);
    kernels.adamw(n, factors, {g.data(), p.data(), m.data(), v.data(), p.data()});
    p.store(key(Rounded::master, element));
    m.store(key(Rounded::exp_avg, element));
    v.store(key(Rounded::exp_avg_sq, element));
    if (shard.data != master.data) gather(p, first, n);
  }

  /// The parameters are what the master holds, so that a shard made from a checkpoint is the same.
  void gather(Operand& p, std::int64_t first, std::int64_t n) const {
    if (shard.dtype == DType::float32) {
      std::copy_n(p.stored(), n, static_cast<float*>(shard.data) + first);
    } else if (shard.dtype == DType::float16) {
      kernels.to_float16(n, p.stored(), halves(shard) + first);
    } else if (master.dtype == DType::bfloat16) {
      std::copy_n(halves(master) + first, n, halves(shard) + first);
    } else {
      kernels.to_bfloat16(n, p.stored(), halves(shard) + first);
    }
  }
};

}  // namespace

void CpuDevice::execute(const op::AdamW& o) {
  check_gradient(o.gradient);
  check_dtype(o.master, false, "the master");
  check_dtype(o.exp_avg, false, "moments");
  check_dtype(o.exp_avg_sq, false, "moments");
  check_dtype(o.shard, true, "the shard");
  for (const Tensor& tensor : {o.gradient, o.master, o.exp_avg, o.exp_avg_sq, o.shard})
    check_ranges(o.ranges, tensor.elements());
  if (!std::isfinite(o.scalars->grad_norm)) return;
  for (const UpdateRange& range : o.ranges) {
    const Step step{
        kernels_,   factors(range, o), range.rounding_key, static_cast<std::uint32_t>(o.scalars->step),
        o.gradient, o.master,          o.exp_avg,          o.exp_avg_sq,
        o.shard};
    parallel_ranges(threads_, range.end - range.begin, kUpdatePiece,
                    [&](std::int64_t begin, std::int64_t end, int) {
                      if (step.all_float32()) return step.update_float32(range.begin + begin, end - begin);
                      for (; begin < end; begin += kUpdatePiece) {
                        step.update_piece(range.begin + begin, std::min(kUpdatePiece, end - begin),
                                          range.first_element + begin);
                      }
                    });
  }
}

}  // namespace llampi::device
