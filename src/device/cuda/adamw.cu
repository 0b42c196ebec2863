// SPDX-License-Identifier: Apache-2.0
// AdamW over the ranges of a shard in one pass. Arithmetic and factors are those of the CPU device, operation
// by operation, so that the bits are those of a CPU with fused multiply-add; beyond fmaf() the compiler has
// no multiplication and addition to contract.
//
// What an operand is kept in is a branch that all threads take alike; state that is all float32, or all bfloat16, has a kernel
// of its own. Bytes an element: gradient 4 or 2, master and moments 8 each (read and written) or 4, shard 2: 30, or 16 with all
// in bfloat16; 6.3 ms or 3.3 ms for 10^9 elements at 4.8 TB/s. Rounding takes about 80 instructions an element, which at that
// bandwidth are as slow as the bytes: a third of them are Philox's.
#include "device/cuda/cuda_device.hpp"
#include "device/cuda/ranges.cuh"
#include "device/cuda/rounding.cuh"

namespace llampi::device::cuda {
namespace {

struct Operand {
  void* data;
  DType dtype;
};

struct Operands {
  Operand gradient, master, exp_avg, exp_avg_sq, shard;
};

/// N elements as they are kept: a word each, or two of 16 bits to a word.
template <int N>
using Words = Vector<std::uint32_t, N>;

/// Elements [i, i + N), of float32 if `wide`, else of 16 bits.
template <int N>
__device__ inline Words<N> load_words(const Operand& operand, bool wide, std::int64_t i) {
  if (wide) return load_vector<N>(static_cast<const std::uint32_t*>(operand.data) + i);
  Words<N> result{};
  if constexpr (N == 1) {
    result.words[0] = static_cast<const std::uint16_t*>(operand.data)[i];
  } else {
    const auto vector = load_vector<N / 2>(static_cast<const std::uint32_t*>(operand.data) + i / 2);
#pragma unroll
    for (int k = 0; k < N / 2; ++k) result.words[k] = vector.words[k];
  }
  return result;
}

/// float32, or bfloat16 widened.
template <int N>
__device__ inline void widen(bool wide, const Words<N>& kept, float (&x)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const std::uint32_t half = kept.words[k / 2] >> (16 * (k % 2)) << 16;
    x[k] = __uint_as_float(wide ? kept.words[k] : half);
  }
}

/// N elements of 16 bits, two to a word.
template <int N>
__device__ inline void store_halves(const Operand& operand, std::int64_t i,
                                    const std::uint32_t (&halves)[N]) {
  if constexpr (N == 1) {
    static_cast<std::uint16_t*>(operand.data)[i] = static_cast<std::uint16_t>(halves[0]);
  } else {
    Words<N / 2> vector;
#pragma unroll
    for (int k = 0; k < N / 2; ++k) vector.words[k] = halves[2 * k] | halves[2 * k + 1] << 16;
    store_vector(static_cast<std::uint32_t*>(operand.data) + i / 2, vector);
  }
}

template <int N>
__device__ inline void store_floats(const Operand& operand, std::int64_t i, const float (&x)[N]) {
  Words<N> vector;
#pragma unroll
  for (int k = 0; k < N; ++k) vector.words[k] = __float_as_uint(x[k]);
  store_vector(static_cast<std::uint32_t*>(operand.data) + i, vector);
}

/// Master or moments, float32 if `wide`, else rounded; x becomes what is kept. `element` is the logical one
/// of x[0].
template <int N>
__device__ inline void keep(const Operand& operand, bool wide, std::int64_t i, const RoundingKey& key,
                            std::uint64_t element, float (&x)[N]) {
  if (wide) return store_floats<N>(operand, i, x);
  const Draws draws = draws_from(key, element, N);
  std::uint32_t halves[N];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    halves[k] = round_bfloat16(x[k], draws[k]);
    x[k] = __uint_as_float(halves[k] << 16);
  }
  store_halves<N>(operand, i, halves);
}

template <class T, int N>
__device__ inline void store_nearest(const Operand& operand, std::int64_t i, const float (&x)[N]) {
  std::uint32_t halves[N];
#pragma unroll
  for (int k = 0; k < N; ++k) halves[k] = bits_of(from_float<T>(x[k]));
  store_halves<N>(operand, i, halves);
}

/// The parameters as the master keeps them, to nearest.
template <int N>
__device__ inline void gather(const Operand& shard, std::int64_t i, const float (&x)[N]) {
  if (shard.dtype == DType::bfloat16) return store_nearest<__nv_bfloat16, N>(shard, i, x);
  if (shard.dtype == DType::float16) return store_nearest<__half, N>(shard, i, x);
  store_floats<N>(shard, i, x);
}

/// Of AdamW, passed to the kernel by value.
struct Constants {
  double beta1, beta2, eps;
};

/// Computed in float64, rounded once.
struct Factors {
  float clip, decay, beta1, rest1, beta2, rest2, inverse_root2, eps, step;
  std::uint32_t number;  ///< of the step, for Philox
  bool finite;           ///< the gradient's norm: else there is no update
};

__device__ inline Factors factors_of(const UpdateRange& range, const Constants& constants,
                                     const UpdateScalars& scalars) {
  const double lr = scalars.learning_rate * range.learning_rate_factor;
  return {.clip = static_cast<float>(scalars.clip_coefficient),
          .decay = static_cast<float>(lr * range.weight_decay),
          .beta1 = static_cast<float>(constants.beta1),
          .rest1 = static_cast<float>(1 - constants.beta1),
          .beta2 = static_cast<float>(constants.beta2),
          .rest2 = static_cast<float>(1 - constants.beta2),
          .inverse_root2 = static_cast<float>(1 / sqrt(scalars.bias_correction2)),
          .eps = static_cast<float>(constants.eps),
          .step = static_cast<float>(lr / scalars.bias_correction1),
          .number = static_cast<std::uint32_t>(scalars.step),
          .finite = fabs(scalars.grad_norm) <= 1.7976931348623157e308};
}

/// Moments and master of elements whose gradients are g, from what they are to what they are to be.
template <int N>
__device__ inline void step(const Factors& f, float (&g)[N], float (&m)[N], float (&v)[N], float (&p)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    g[k] *= f.clip;
    m[k] = fmaf(m[k], f.beta1, g[k] * f.rest1);
    v[k] = fmaf(v[k], f.beta2, g[k] * g[k] * f.rest2);
    const float decayed = fmaf(p[k], -f.decay, p[k]);
    const float root = fmaf(sqrtf(v[k]), f.inverse_root2, f.eps);
    p[k] = decayed - f.step * m[k] / root;
  }
}

/// Which state a kernel is for.
enum class State : std::uint8_t { float32, bfloat16, any };

/// Elements [i, i + N), of which the first is `element` of its parameter.
template <int N, State kState>
__device__ inline void update(const Factors& f, const Operands& o, std::uint64_t rounding_key, std::int64_t i,
                              std::uint64_t element) {
  const auto is_wide = [](const Operand& operand) {
    return kState == State::float32 || operand.dtype == DType::float32;
  };
  const bool wide_g = o.gradient.dtype == DType::float32, wide_p = is_wide(o.master);
  const bool wide_m = is_wide(o.exp_avg), wide_v = is_wide(o.exp_avg_sq);
  const auto kept_g = load_words<N>(o.gradient, wide_g, i), kept_m = load_words<N>(o.exp_avg, wide_m, i);
  const auto kept_v = load_words<N>(o.exp_avg_sq, wide_v, i), kept_p = load_words<N>(o.master, wide_p, i);
  float g[N], m[N], v[N], p[N];
  widen(wide_g, kept_g, g);
  widen(wide_m, kept_m, m);
  widen(wide_v, kept_v, v);
  widen(wide_p, kept_p, p);
  step(f, g, m, v, p);
  const auto key = [&](Rounded which) {
    return RoundingKey{rounding_key, f.number, static_cast<std::uint32_t>(which)};
  };
  keep<N>(o.exp_avg, wide_m, i, key(Rounded::exp_avg), element, m);
  keep<N>(o.exp_avg_sq, wide_v, i, key(Rounded::exp_avg_sq), element, v);
  keep<N>(o.master, wide_p, i, key(Rounded::master), element, p);
  if (o.shard.data != o.master.data) gather<N>(o.shard, i, p);
}

using Halves = Vector<__nv_bfloat16, 8>;

/// Elements [i, i + 8) of a state in bfloat16, which share the blocks of Philox numbered `block`. Those are drawn while
/// the state is on its way.
__device__ inline void update_block(const Factors& f, const Operands& o, std::uint64_t rounding_key,
                                    std::int64_t i, std::uint64_t block) {
  const auto load = [&](const Operand& operand) {
    return load_vector<8>(static_cast<const __nv_bfloat16*>(operand.data) + i);
  };
  const bool wide_g = o.gradient.dtype == DType::float32;
  const auto kept_g = load_words<8>(o.gradient, wide_g, i);
  const Halves kept_m = load(o.exp_avg), kept_v = load(o.exp_avg_sq), kept_p = load(o.master);
  const auto upper = [&](Rounded which) {
    return upper_counter(f.number, static_cast<std::uint32_t>(which));
  };
  PhiloxBlock draws[3];
  philox<3>(block, {upper(Rounded::master), upper(Rounded::exp_avg), upper(Rounded::exp_avg_sq)},
            rounding_key, draws);
  float g[8], m[8], v[8], p[8];
  widen(wide_g, kept_g, g);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    m[k] = kept_m[k];
    v[k] = kept_v[k];
    p[k] = kept_p[k];
  }
  step(f, g, m, v, p);
  const auto keep = [&](const Operand& operand, const Halves& halves) {
    store_vector(static_cast<__nv_bfloat16*>(operand.data) + i, halves);
  };
  const Halves master = round_bfloat16(p, draws[0]);
  keep(o.exp_avg, round_bfloat16(m, draws[1]));
  keep(o.exp_avg_sq, round_bfloat16(v, draws[2]));
  keep(o.master, master);
  if (o.shard.data != o.master.data) keep(o.shard, master);
}

template <int N, State kState>
__global__ void __launch_bounds__(kRangeThreads, kState == State::float32 ? 6 : 3)
    adamw_kernel(const RangeGroup group, const Constants constants, const UpdateScalars* scalars,
                 const Operands operands) {
  __shared__ Factors shared;
  const Piece piece = piece_of_block(group);
  const UpdateRange& range = group.ranges[piece.range];
  if (threadIdx.x == 0) shared = factors_of(range, constants, *scalars);
  __syncthreads();
  const Factors factors = shared;
  if (!factors.finite) return;
  const std::int64_t to_element = range.first_element - range.begin;
  const std::uint64_t key = range.rounding_key;
  const auto at = [&](std::int64_t i) { return static_cast<std::uint64_t>(i + to_element); };
  if constexpr (kState == State::bfloat16) {
    walk<8, 1>(
        piece, [&](std::int64_t i, auto) { update_block(factors, operands, key, i, at(i) / 8); },
        [&](std::int64_t i) { update<1, State::any>(factors, operands, key, i, at(i)); });
  } else {
    walk<N, 1>(
        piece, [&](std::int64_t i, auto) { update<N, kState>(factors, operands, key, i, at(i)); },
        [&](std::int64_t i) { update<1, kState>(factors, operands, key, i, at(i)); });
  }
}

Operand operand_of(const Tensor& tensor, bool may_be_float16, const char* name) {
  const bool known = tensor.dtype == DType::float32 || tensor.dtype == DType::bfloat16 ||
                     (may_be_float16 && tensor.dtype == DType::float16);
  if (!known)
    throw Error(fmt::format("the GPU has no kernels for AdamW with {} in {}", name, to_string(tensor.dtype)));
  return {tensor.data, tensor.dtype};
}

bool aligned(const Operand& operand, int elements) {
  const auto bytes = static_cast<std::uintptr_t>(elements * size_of(operand.dtype));
  return reinterpret_cast<std::uintptr_t>(operand.data) % bytes == 0;
}

/// All but the gradient.
bool all_bfloat16(const Operands& o) {
  const auto is = [](const Operand& operand) { return operand.dtype == DType::bfloat16; };
  return is(o.master) && is(o.exp_avg) && is(o.exp_avg_sq) && is(o.shard);
}

/// Whether eight elements that a vector holds share a block of Philox.
bool all_in_blocks(std::span<const UpdateRange> ranges) {
  return std::ranges::all_of(
      ranges, [](const UpdateRange& range) { return (range.first_element - range.begin) % 8 == 0; });
}

/// work(N, State): vectors of 16 bytes in float32; twice as many elements where draws are made, eight to a
/// block of Philox.
template <class Work>
void with_update(const Operands& o, std::span<const UpdateRange> ranges, const Work& work) {
  const auto fits = [&](int n) {
    return aligned(o.gradient, n) && aligned(o.master, n) && aligned(o.exp_avg, n) &&
           aligned(o.exp_avg_sq, n) && aligned(o.shard, n);
  };
  const bool wide = o.master.dtype == DType::float32 && o.exp_avg.dtype == DType::float32 &&
                    o.exp_avg_sq.dtype == DType::float32;
  if (wide) {
    with_width<4>(fits(4), [&](auto n) { work(n, std::integral_constant<State, State::float32>{}); });
  } else if (fits(8) && all_bfloat16(o) && all_in_blocks(ranges)) {
    work(std::integral_constant<int, 8>{}, std::integral_constant<State, State::bfloat16>{});
  } else {
    with_width<8>(fits(8), [&](auto n) { work(n, std::integral_constant<State, State::any>{}); });
  }
}

}  // namespace

void CudaDevice::execute(const op::AdamW& o) {
  const Operands operands{operand_of(o.gradient, false, "the gradient"),
                          operand_of(o.master, false, "the master"), operand_of(o.exp_avg, false, "moments"),
                          operand_of(o.exp_avg_sq, false, "moments"), operand_of(o.shard, true, "the shard")};
  const std::int64_t elements = std::min({o.gradient.elements(), o.master.elements(), o.exp_avg.elements(),
                                          o.exp_avg_sq.elements(), o.shard.elements()});
  const Constants constants{o.beta1, o.beta2, o.eps};
  with_update(operands, o.ranges, [&](auto width, auto state) {
    for_each_group(o.ranges, elements, [&](const RangeGroup& group, dim3 blocks) {
      launch(adamw_kernel<width(), state()>, blocks, dim3(kRangeThreads), 0, compute(), group, constants,
             o.scalars, operands);
    });
  });
}

}  // namespace llampi::device::cuda
