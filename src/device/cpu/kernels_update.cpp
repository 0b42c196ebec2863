// SPDX-License-Identifier: Apache-2.0
// Kernels over ranges of a shard: gradient norm and AdamW. Compiled once per instruction set (see simd.hpp).
#include "device/cpu/kernels_variant.hpp"
#include "device/cpu/simd.hpp"

namespace llampi::device::LLAMPI_SIMD {
namespace {

std::int32_t max_magnitude(Index n, const float* x) {
  Ints top{};
  for_each_vector(n, [&](Index i, auto part) {
    const Ints magnitude = as_ints(load(x + i, part)) & 0x7FFFFFFF;
    top = magnitude > top ? magnitude : top;
  });
  return largest(top);
}

/// Integers below 2^52 in float64, summed as integers: adding 2^52 leaves the integer in the lower bits of
/// the number. (Instruction sets before AVX-512 have no conversion to int64.)
class IntegerSum {
 public:
  void add(Doubles v) { sum_ += reinterpret_cast<Longs>(v + 0x1p52) & ((std::int64_t{1} << 52) - 1); }
  std::int64_t total() const {
    std::int64_t result = 0;
    for (Index i = 0; i < kWidth / 2; ++i) result += sum_[i];
    return result;
  }

 private:
  Longs sum_{};
};

/// For 0 <= v < 2^52.
inline Doubles floor(Doubles v) {
  const Doubles nearest = (v + 0x1p52) - 0x1p52;
  return nearest > v ? nearest - 1.0 : nearest;
}

/// 2^exponent of normal numbers
inline double power_of_two(int exponent) {
  return __builtin_bit_cast(double, static_cast<std::int64_t>(exponent + 1023) << 52);
}

/// The squares of float32 are exact in float64. Those within 24 exponents of the largest are integers below 2^94 in the unit of
/// the smallest, which is cut in two of 48 bits, exactly.
PieceOfSquares sum_squares(Index n, const float* x, std::int32_t most) {
  constexpr int kExponents = 24, kLowBits = PieceOfSquares::kLowBits;
  const int top = most >> 23, bottom = top > kExponents ? top - kExponents + 1 : 1;
  const std::int32_t least = bottom == 1 ? 1 : bottom << 23;  // subnormal ones have the unit of exponent 1
  const int unit = 2 * (bottom - 150);
  const double scale = power_of_two(-unit - kLowBits);
  IntegerSum high_sum, low_sum;
  const auto add = [&](Doubles v) {
    const Doubles square = v * v * scale;
    const Doubles high = floor(square);
    high_sum.add(high);
    low_sum.add((square - high) * 0x1p48);
  };
  Ints left_out{};
  for_each_vector(n, [&](Index i, auto part) {
    const Floats v = load(x + i, part);
    const Ints magnitude = as_ints(v) & 0x7FFFFFFF;
    const Ints smaller = magnitude < least ? magnitude : Ints{};
    left_out = smaller > left_out ? smaller : left_out;
    const Ints taken = (magnitude >= least) & (magnitude <= most);
    const Wide wide = widen(reinterpret_cast<Floats>(as_ints(v) & taken));
    add(wide.low);
    add(wide.high);
  });
  return {.low = low_sum.total(), .high = high_sum.total(), .unit = unit, .left_out = largest(left_out)};
}

void adamw(Index n, const AdamWFactors& f, const AdamWArrays& arrays) {
  const float* const gradient = arrays.gradient;
  float *const master = arrays.master, *const shard = arrays.shard;
  float *const exp_avg = arrays.exp_avg, *const exp_avg_sq = arrays.exp_avg_sq;
  for_each_vector(n, [&](Index i, auto part) {
    const Floats g = load(gradient + i, part) * f.clip;
    const Floats m = multiply_add(load(exp_avg + i, part), broadcast(f.beta1), g * f.rest1);
    const Floats v = multiply_add(load(exp_avg_sq + i, part), broadcast(f.beta2), g * g * f.rest2);
    const Floats p = load(master + i, part);
    const Floats decayed = multiply_add(p, broadcast(-f.decay), p);
    const Floats root = multiply_add(square_root(v), broadcast(f.inverse_root2), broadcast(f.eps));
    const Floats updated = decayed - f.step * m / root;
    store(exp_avg + i, m, part);
    store(exp_avg_sq + i, v, part);
    store(master + i, updated, part);
    store(shard + i, updated, part);
  });
}

}  // namespace

void add_update_kernels(Kernels& kernels) {
  kernels.max_magnitude = max_magnitude;
  kernels.sum_squares = sum_squares;
  kernels.adamw = adamw;
}

}  // namespace llampi::device::LLAMPI_SIMD
