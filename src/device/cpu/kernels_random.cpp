// SPDX-License-Identifier: Apache-2.0
// Random numbers: core/philox.hpp and core/normal.hpp in vectors.
#include <cmath>

#include "device/cpu/kernels_variant.hpp"
#include "device/cpu/philox_vectors.hpp"
#include "llampi/core/normal.hpp"

namespace llampi::device::LLAMPI_SIMD {
namespace {

/// For standard_normal().
struct VectorArithmetic {
  using Real = Doubles;
  using Bits = Words;
  static Real constant(double value) { return value - Doubles{}; }
  static Real multiply_add(Real a, Real b, Real c) {
#if defined(LLAMPI_SIMD_512)
    return _mm512_fmadd_pd(a, b, c);
#elif defined(LLAMPI_SIMD_256)
    return _mm256_fmadd_pd(a, b, c);
#else
    for (Index i = 0; i < kBlocks; ++i) c[i] = __builtin_fma(a[i], b[i], c[i]);
    return c;
#endif
  }
  static Real square_root(Real v) {
#if defined(LLAMPI_SIMD_512)
    return _mm512_sqrt_pd(v);
#elif defined(LLAMPI_SIMD_256)
    return _mm256_sqrt_pd(v);
#else
    for (Index i = 0; i < kBlocks; ++i) v[i] = __builtin_sqrt(v[i]);
    return v;
#endif
  }
  static Real as_real(Bits bits) { return reinterpret_cast<Real>(bits); }
  static Bits as_bits(Real v) { return reinterpret_cast<Bits>(v); }
};

/// One number per lane, rounded to float32.
typedef float Singles __attribute__((vector_size(kVectorBytes / 2)));
inline Singles normals(const NormalSource& source, Words index, double deviation) {
  const auto [first, second] =
      philox({index, index >> 32, Words{} + source.purpose, Words{} + (source.purpose >> 32)}, source.key);
  return __builtin_convertvector(deviation * standard_normal<VectorArithmetic>(first, second), Singles);
}

void normal(Index n, const NormalSource& source, double deviation, float* y) {
  Words index = Words{} + source.first;
  for (Index i = 0; i < kBlocks; ++i) index[i] += static_cast<std::uint64_t>(i);
  Index i = 0;
  // Two vectors side by side: each is one long chain of operations, and 1.3 times as many numbers are drawn.
  for (; i + 2 * kBlocks <= n; i += 2 * kBlocks, index += 2 * kBlocks) {
    const Singles numbers[] = {normals(source, index, deviation),
                               normals(source, index + kBlocks, deviation)};
    __builtin_memcpy(y + i, &numbers, sizeof numbers);
  }
  for (; i < n; i += kBlocks, index += kBlocks) {
    const Singles numbers = normals(source, index, deviation);
    for (Index lane = 0; lane < kBlocks && i + lane < n; ++lane) y[i + lane] = numbers[lane];
  }
}

}  // namespace

void add_random_kernels(Kernels& kernels) { kernels.normal = normal; }

}  // namespace llampi::device::LLAMPI_SIMD
