// SPDX-License-Identifier: Apache-2.0
// Kernels between float32 and the 16-bit formats. Compiled once per instruction set (see simd.hpp). The
// arithmetic is that of core/half.hpp, which is not included: its inline functions would be compiled for this
// instruction set.
#include "device/cpu/kernels_variant.hpp"
#include "device/cpu/philox_vectors.hpp"

namespace llampi::device::LLAMPI_SIMD {
namespace {

using Half = std::uint16_t;
typedef Half Halves __attribute__((vector_size(kVectorBytes / 2)));

inline Bits as_bits(Floats v) { return reinterpret_cast<Bits>(v); }
inline Floats as_floats(Bits v) { return reinterpret_cast<Floats>(v); }
inline Ints magnitude(Floats v) { return as_ints(v) & 0x7FFFFFFF; }

inline Halves load(const Half* p, Whole) {
  Halves v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline void store(Half* p, Halves v, Whole) { __builtin_memcpy(p, &v, sizeof v); }

inline Halves load(const Half* p, Part part) {
  Halves v{};
  for (Index i = 0; i < part.n; ++i) v[i] = p[i];
  return v;
}
inline void store(Half* p, Halves v, Part part) {
  for (Index i = 0; i < part.n; ++i) p[i] = v[i];
}

inline Bits widen(Halves v) { return __builtin_convertvector(v, Bits); }
inline Halves narrow(Bits v) { return __builtin_convertvector(v, Halves); }

/// NaN, made quiet so that it stays one when its lower half is gone.
inline Bits quiet_upper(Floats v) { return (as_bits(v) >> 16) | 0x40; }

inline Floats from_bfloat16(Halves v) { return as_floats(widen(v) << 16); }

inline Halves to_bfloat16(Floats v) {
  const Bits bits = as_bits(v);
  const Bits rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return narrow(magnitude(v) > 0x7F800000 ? quiet_upper(v) : rounded);
}

#if defined(LLAMPI_SIMD_512)
inline Floats from_float16(Halves v) { return _mm512_cvtph_ps(reinterpret_cast<__m256i>(v)); }
inline Halves to_float16(Floats v) {
  return reinterpret_cast<Halves>(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#elif defined(LLAMPI_SIMD_256) && defined(__F16C__)
inline Floats from_float16(Halves v) { return _mm256_cvtph_ps(reinterpret_cast<__m128i>(v)); }
inline Halves to_float16(Floats v) {
  return reinterpret_cast<Halves>(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
#else
// The names and the reasons are those of core/half.hpp.
constexpr std::uint32_t kRebias = (127 - 15) << 23;

inline Floats from_float16(Halves v) {
  const Bits bits = widen(v);
  const Bits sign = (bits & 0x8000) << 16, size = bits & 0x7FFF, exponent = bits & 0x7C00;
  const Bits normal = (size << 13) + kRebias;
  const Bits large = exponent == 0x7C00 ? normal + kRebias : normal;
  const Bits small = as_bits(as_floats(size + 0x3F000000U) - 0.5F);
  return as_floats(sign | (exponent == 0 ? small : large));
}

inline Halves to_float16(Floats v) {
  const Ints size = magnitude(v);
  const Bits bits = reinterpret_cast<Bits>(size), sign = (as_bits(v) >> 16) & 0x8000;
  const Bits small = as_bits(as_floats(bits) + 0.5F) - 0x3F000000U;
  const Bits normal = (bits - kRebias + 0x0FFF + ((bits >> 13) & 1)) >> 13;
  const Bits nan = ((bits >> 13) & 0x3FF) | 0x7E00;
  const Bits infinity = Bits{} + 0x7C00;
  const Bits large = size > 0x7F800000 ? nan : infinity;
  const Bits rounded = size < 0x38800000 ? small : normal;
  return narrow(sign | (size >= 0x47800000 ? large : rounded));
}
#endif

void widen_bfloat16(Index n, const Half* x, float* y) {
  for_each_vector(n, [&](Index i, auto part) { store(y + i, from_bfloat16(load(x + i, part)), part); });
}
void narrow_bfloat16(Index n, const float* x, Half* y) {
  for_each_vector(n, [&](Index i, auto part) { store(y + i, to_bfloat16(load(x + i, part)), part); });
}
void widen_float16(Index n, const Half* x, float* y) {
  for_each_vector(n, [&](Index i, auto part) { store(y + i, from_float16(load(x + i, part)), part); });
}
void narrow_float16(Index n, const float* x, Half* y) {
  for_each_vector(n, [&](Index i, auto part) { store(y + i, to_float16(load(x + i, part)), part); });
}

// ---- stochastic rounding ----

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "draws are taken from the lower end of a block");

constexpr Index kDrawsOfBlock = 8;
constexpr Index kDraws = 128;  ///< made before they are used: several independent vectors of blocks

/// `draws` = the bits of the blocks `block` ... block + kBlocks - 1. Philox4x32-10 as in core/philox.hpp, a
/// block per lane.
inline void draw_blocks(const RoundingKey& key, std::uint64_t block, Half* draws) {
  Words c0{}, interleave_low{}, interleave_high{};
  for (Index i = 0; i < kBlocks; ++i) {
    c0[i] = block + static_cast<std::uint64_t>(i);
    interleave_low[i] = static_cast<std::uint64_t>(i / 2 + i % 2 * kBlocks);
    interleave_high[i] = static_cast<std::uint64_t>((i + kBlocks) / 2 + i % 2 * kBlocks);
  }
  const auto [low, high] = philox({c0, c0 >> 32, Words{} + key.step, Words{} + key.operand}, key.parameter);
  const Words both[2] = {__builtin_shuffle(low, high, interleave_low),
                         __builtin_shuffle(low, high, interleave_high)};
  __builtin_memcpy(draws, both, sizeof both);
}

/// In pieces that end where the draws do, at multiples of kDraws of the logical element.
void round_bfloat16(Index n, const float* x, const RoundingKey& key, Half* y) {
  Half draws[kDraws + kWidth] = {};  // the last load may reach beyond what counts
  for (Index begin = 0; begin < n;) {
    const std::uint64_t element = key.first_element + static_cast<std::uint64_t>(begin);
    const auto skip = static_cast<Index>(element % kDraws);
    const std::uint64_t block = (element - static_cast<std::uint64_t>(skip)) / kDrawsOfBlock;
    for (Index i = 0; i < kDraws / kDrawsOfBlock; i += kBlocks)
      draw_blocks(key, block + static_cast<std::uint64_t>(i), draws + i * kDrawsOfBlock);
    const Index count = n - begin < kDraws - skip ? n - begin : kDraws - skip;
    for_each_vector(count, [&](Index i, auto part) {
      const Floats value = load(x + begin + i, part);
      const Bits rounded = (as_bits(value) + widen(load(draws + skip + i, Whole{}))) >> 16;
      store(y + begin + i, narrow(magnitude(value) > 0x7F800000 ? quiet_upper(value) : rounded), part);
    });
    begin += count;
  }
}

}  // namespace

void add_cast_kernels(Kernels& kernels) {
  kernels.from_bfloat16 = widen_bfloat16;
  kernels.to_bfloat16 = narrow_bfloat16;
  kernels.from_float16 = widen_float16;
  kernels.to_float16 = narrow_float16;
  kernels.round_bfloat16 = round_bfloat16;
}

}  // namespace llampi::device::LLAMPI_SIMD
