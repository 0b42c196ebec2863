// SPDX-License-Identifier: Apache-2.0
// Vectors of the instruction set that the including file is compiled for: GCC's vector extensions, and
// intrinsics where those have no word for it (fused multiply-add, square root, masked access).
//
// To be included by kernels*.cpp only, which are compiled several times with different -march: everything
// here is in a namespace of its own per variant (LLAMPI_SIMD), so that no linker mixes them up.
#pragma once

#include <cstdint>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef LLAMPI_SIMD
#error "LLAMPI_SIMD must name the variant"
#endif

namespace llampi::device::LLAMPI_SIMD {
// Internal linkage: an inline function of one variant must never be taken for that of another.
namespace {

using Index = std::int64_t;

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#define LLAMPI_SIMD_512
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__) && defined(__FMA__)
#define LLAMPI_SIMD_256
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr Index kWidth = kVectorBytes / 4;  ///< float32 per vector

typedef float Floats __attribute__((vector_size(kVectorBytes)));
typedef std::int32_t Ints __attribute__((vector_size(kVectorBytes)));
typedef std::uint32_t Bits __attribute__((vector_size(kVectorBytes)));
typedef double Doubles __attribute__((vector_size(kVectorBytes)));
typedef std::int64_t Longs __attribute__((vector_size(kVectorBytes)));

inline Floats broadcast(float value) { return value - Floats{}; }
inline Ints as_ints(Floats v) { return reinterpret_cast<Ints>(v); }

inline Floats load(const float* p) {
  Floats v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Floats v) { __builtin_memcpy(p, &v, sizeof v); }

/// How much of a vector an access covers: all of it, or the first n < kWidth elements. The others are then
/// zero, and not touched in memory.
struct Whole {};
struct Part {
  Index n;
};
template <class T>
inline constexpr bool kIsWhole = false;
template <>
inline constexpr bool kIsWhole<Whole> = true;

inline Floats load(const float* p, Whole) { return load(p); }
inline void store(float* p, Floats v, Whole) { store(p, v); }

inline Floats load(const float* p, Part part) {
#ifdef LLAMPI_SIMD_512
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << part.n) - 1), p);
#else
  Floats v{};
  for (Index i = 0; i < part.n; ++i) v[i] = p[i];
  return v;
#endif
}
inline void store(float* p, Floats v, Part part) {
#ifdef LLAMPI_SIMD_512
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1U << part.n) - 1), v);
#else
  for (Index i = 0; i < part.n; ++i) p[i] = v[i];
#endif
}

/// step(first element, Whole or Part) over [0, n). Body and tail are the same arithmetic, so that an
/// element's result does not depend on where it stands.
template <class Step>
inline void for_each_vector(Index n, const Step& step) {
  Index i = 0;
  for (; i + kWidth <= n; i += kWidth) step(i, Whole{});
  if (i < n) step(i, Part{n - i});
}

/// a * b + c, in one rounding where the instruction set can.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(LLAMPI_SIMD_512)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(LLAMPI_SIMD_256)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

/// Correctly rounded.
inline Floats square_root(Floats v) {
#if defined(LLAMPI_SIMD_512)
  return _mm512_sqrt_ps(v);
#elif defined(LLAMPI_SIMD_256)
  return _mm256_sqrt_ps(v);
#else
  for (Index i = 0; i < kWidth; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#endif
}

inline Floats maximum(Floats a, Floats b) { return a > b ? a : b; }

/// Of the elements of a vector.
template <class Vector>
inline auto largest(Vector v) {
  auto result = v[0];
  for (Index i = 1; i < kWidth; ++i) result = v[i] > result ? v[i] : result;
  return result;
}

/// 0, 1, 2, ...
inline Ints lanes() {
  Ints v{};
  for (Index i = 0; i < kWidth; ++i) v[i] = static_cast<std::int32_t>(i);
  return v;
}

struct Wide {
  Doubles low, high;
};

inline Wide widen(Floats v) {
#if defined(LLAMPI_SIMD_512)
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(v)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1))};
#elif defined(LLAMPI_SIMD_256)
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(v)), _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1))};
#else
  return {Doubles{v[0], v[1]}, Doubles{v[2], v[3]}};
#endif
}

/// p[i] += v[i] in float64
inline void add_wide(double* p, Floats v, Whole) {
  const Wide wide = widen(v);
  Doubles sums[2];
  __builtin_memcpy(sums, p, sizeof sums);
  sums[0] += wide.low;
  sums[1] += wide.high;
  __builtin_memcpy(p, sums, sizeof sums);
}
inline void add_wide(double* p, Floats v, Part part) {
  for (Index i = 0; i < part.n; ++i) p[i] += static_cast<double>(v[i]);
}

/// Sums float32 in float64.
class Sum {
 public:
  void add(Floats v) {
    const Wide wide = widen(v);
    low_ += wide.low;
    high_ += wide.high;
  }
  double total() const {
    const Doubles both = low_ + high_;
    double result = 0;
    for (Index i = 0; i < kWidth / 2; ++i) result += both[i];
    return result;
  }

 private:
  Doubles low_{}, high_{};
};

/// e^x with a relative error below 1.5e-7 for normal results; 0 where the result would be below 2^-126 (about
/// x < -87.33), infinity where it overflows; NaN stays NaN.
///
/// x = n ln 2 + r, |r| <= ln 2 / 2, with ln 2 in two parts so that n times the first is exact (W. J. Cody, W.
/// Waite, "Software Manual for the Elementary Functions", 1980); e^r = 1 + r + r^2 q(r), q of degree 4 fitted
/// to the smallest largest relative error (3e-9) by iteratively reweighted least squares (Lawson); n is added
/// to the exponent.
inline Floats exp(Floats x) {
  const Floats round = broadcast(0x1.8p23F);  // adding and subtracting it rounds to the nearest integer
  const Floats n = multiply_add(x, broadcast(1.442695F), round) - round;
  const Floats r = multiply_add(n, broadcast(2.1219444e-4F), multiply_add(n, broadcast(-0.693359375F), x));
  Floats q = multiply_add(broadcast(0.001381454F), r, broadcast(0.008368745F));
  q = multiply_add(q, r, broadcast(0.04166839F));
  q = multiply_add(q, r, broadcast(0.16666521F));
  q = multiply_add(q, r, broadcast(0.49999994F));
  const Floats e = multiply_add(q, r * r, r) + 1.0F;
  const Bits exponent = reinterpret_cast<Bits>(__builtin_convertvector(n, Ints)) << 23;
  const Floats result = reinterpret_cast<Floats>(reinterpret_cast<Bits>(e) + exponent);
  const Floats infinity = broadcast(__builtin_inff());
  const Floats finite = x > 88.72283F ? infinity : result;
  return x < -87.33F ? Floats{} : finite;
}

}  // namespace
}  // namespace llampi::device::LLAMPI_SIMD
