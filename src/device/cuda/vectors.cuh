// SPDX-License-Identifier: Apache-2.0
// Vectors of N elements, read and written at once, for operands of different widths that are walked in step.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "device/cuda/kernels.cuh"
#include "llampi/core/integers.hpp"

namespace llampi::device::cuda {

/// Element `place` of those that share a word of 32 bits, in float32.
template <class T>
__device__ inline float unpack(std::uint32_t word, int place);
template <>
__device__ inline float unpack<float>(std::uint32_t word, int) {
  return __uint_as_float(word);
}
template <>
__device__ inline float unpack<__nv_bfloat16>(std::uint32_t word, int place) {
  return __uint_as_float(place == 0 ? word << 16 : word & 0xFFFF0000U);
}
template <>
__device__ inline float unpack<__half>(std::uint32_t word, int place) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(word >> (16 * place))));
}

__device__ inline std::uint32_t bits_of(float x) { return __float_as_uint(x); }
__device__ inline std::uint32_t bits_of(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }
__device__ inline std::uint32_t bits_of(__half x) { return __half_as_ushort(x); }

/// N elements of T that lie side by side, as they are in memory: two of 16 bits share a word.
template <class T, int N>
struct Vector {
  static constexpr int kShare = static_cast<int>(4 / sizeof(T));
  static constexpr int kWords = (N + kShare - 1) / kShare;
  std::uint32_t words[kWords];

  __device__ float operator[](int i) const { return unpack<T>(words[i / kShare], i % kShare); }

  static __device__ Vector from(const float (&x)[N]) {
    Vector result{};
#pragma unroll
    for (int i = 0; i < N; ++i)
      result.words[i / kShare] |= bits_of(from_float<T>(x[i])) << (16 * (i % kShare));
    return result;
  }

  /// Takes from the compiler what it knows of the elements: else it keeps them in float32 for a later use, in
  /// twice as many registers.
  __device__ void forget() {
#ifdef __CUDA_ARCH__
#pragma unroll
    for (int i = 0; i < kWords; ++i) asm volatile("" : "+r"(words[i]));
#endif
  }
};

/// Elements of T in a vector of 16 bytes.
template <class T>
inline constexpr int kWidth = 16 / static_cast<int>(sizeof(T));

/// What the hardware moves at once: the largest of 2, 4, 8, 16 bytes that these can be made of.
template <int kBytes>
using Unit =
    std::conditional_t<kBytes % 16 == 0, uint4,
                       std::conditional_t<kBytes % 8 == 0, uint2,
                                          std::conditional_t<kBytes % 4 == 0, std::uint32_t, std::uint16_t>>>;

/// To global memory.
template <class U>
__device__ inline void store_unit(U* to, U unit) {
  *to = unit;
}
template <>
__device__ inline void store_unit<uint4>(uint4* to, uint4 unit) {
  store_global(to, unit);
}
template <>
__device__ inline void store_unit<uint2>(uint2* to, uint2 unit) {
  store_global(to, unit);
}

/// Pointers are to global memory, aligned to the size of the vector.
template <int N, class T>
__device__ inline Vector<T, N> load_vector(const T* from) {
  using U = Unit<N * sizeof(T)>;
  constexpr int kUnits = static_cast<int>(N * sizeof(T) / sizeof(U));
  U units[kUnits];
#pragma unroll
  for (int i = 0; i < kUnits; ++i) units[i] = reinterpret_cast<const U*>(from)[i];
  Vector<T, N> vector{};
  memcpy(vector.words, units, sizeof units);
  return vector;
}
/// Likewise: not to shared memory.
template <class T, int N>
__device__ inline void store_vector(T* to, const Vector<T, N>& vector) {
  using U = Unit<N * sizeof(T)>;
  constexpr int kUnits = static_cast<int>(N * sizeof(T) / sizeof(U));
  U units[kUnits];
  memcpy(units, vector.words, sizeof units);
#pragma unroll
  for (int i = 0; i < kUnits; ++i) store_unit(reinterpret_cast<U*>(to) + i, units[i]);
}

/// Whether rows of `cols` elements of T that start at `data` can be walked in vectors of N.
template <class T>
bool fits_vectors(int n, std::int64_t cols, std::initializer_list<const T*> data) {
  bool fits = cols % n == 0;
  for (const T* p : data) fits = fits && reinterpret_cast<std::uintptr_t>(p) % (n * sizeof(T)) == 0;
  return fits;
}

/// A block for each row and part of it, of kElementThreads vectors.
inline dim3 grid_of_rows(std::int64_t rows, std::int64_t cols, int width) {
  return dim3(static_cast<unsigned>(rows),
              static_cast<unsigned>(ceil_div(cols, std::int64_t{kElementThreads} * width)));
}

/// work(std::integral_constant<int, N>) with N elements at a time where that fits, else one.
template <int N, class Work>
void with_width(bool fits, const Work& work) {
  if (fits) return work(std::integral_constant<int, N>{});
  work(std::integral_constant<int, 1>{});
}

}  // namespace llampi::device::cuda
