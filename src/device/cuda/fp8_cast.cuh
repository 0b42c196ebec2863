// SPDX-License-Identifier: Apache-2.0
// What casts to 8 bits share: numbers are rounded to bfloat16 first, infinite ones are counted.
#pragma once

#include <algorithm>
#include <type_traits>

#include "device/cuda/float8.cuh"

namespace llampi::device::cuda {

inline constexpr int kCastWidth = 8;  ///< elements of a vector
using CastVector = Vector<__nv_bfloat16, kCastWidth>;

/// An element of T that has become a float32, rounded to bfloat16. NaN keeps its sign.
template <class T>
__device__ inline float as_bfloat16(float x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return x;
  std::uint32_t bits = __float_as_uint(x);
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  bits = is_nan ? bits | 0x400000U : bits + 0x7FFFU + ((bits >> 16) & 1U);
  return __uint_as_float(bits & 0xFFFF0000U);
}

template <class T>
__device__ inline CastVector as_bfloat16(const Vector<T, kCastWidth>& vector) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return vector;
  } else {
    CastVector result{};
#pragma unroll
    for (int i = 0; i < kCastWidth; ++i)
      result.words[i / 2] |= __float_as_uint(as_bfloat16<T>(vector[i])) >> 16 << (16 * (i % 2));
    return result;
  }
}

/// 1 if it is infinite.
__device__ inline int infinities(float x) {
  return (__float_as_uint(x) & 0x7FFFFFFFU) == 0x7F800000U ? 1 : 0;
}
__device__ inline int infinities(const CastVector& vector) {
  int count = 0;
#pragma unroll
  for (int i = 0; i < kCastWidth; ++i) count += infinities(vector[i]);
  return count;
}

/// What the threads of a block counted is added to *saturated, unless that is null. All of them call it.
__device__ inline void count_infinities(int infinite, unsigned long long* saturated) {
  const int of_warp = __reduce_add_sync(0xFFFFFFFFU, infinite);
  if (saturated != nullptr && of_warp > 0 && threadIdx.x % 32 == 0)
    atomicAdd(saturated, static_cast<unsigned long long>(of_warp));
}

/// x times a power of two; NaN keeps its sign, which the multiplication of a GPU drops.
__device__ inline float scaled(float x, float scale) { return copysignf(x * scale, x); }

/// The numbers in 8 bits, each of them multiplied by scale_of(i) first.
template <DType kDType, class ScaleOf>
__device__ inline uint2 float8_vector(const CastVector& vector, const ScaleOf& scale_of) {
  std::uint32_t pairs[kCastWidth / 2];
#pragma unroll
  for (int i = 0; i < kCastWidth / 2; ++i)
    pairs[i] = float8_pair<kDType>(scaled(vector[2 * i], scale_of(2 * i)),
                                   scaled(vector[2 * i + 1], scale_of(2 * i + 1)));
  return {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
}
template <DType kDType>
__device__ inline std::uint8_t float8_of(float x) {
  return static_cast<std::uint8_t>(float8_pair<kDType>(x, 0.0F));
}

// ---- launches ----

/// work(elements, a constant DType) with the source's element type and that of what it is cast to.
template <class Work>
void with_cast(const Tensor& source, DType to, const Work& work) {
  const auto as = [&](auto tag) {
    const auto* const data = static_cast<const typename decltype(tag)::type*>(source.data);
    if (to == DType::float8_e5m2) return work(data, std::integral_constant<DType, DType::float8_e5m2>{});
    work(data, std::integral_constant<DType, DType::float8_e4m3fn>{});
  };
  if (source.dtype == DType::float32) return as(Tag<float>{});
  if (source.dtype == DType::bfloat16) return as(Tag<__nv_bfloat16>{});
  throw Error(fmt::format("the GPU has no kernels that cast {} to 8 bits: they take float32 or bfloat16",
                          to_string(source.dtype)));
}

/// Null for an empty Tensor.
inline std::uint8_t* fp8_elements(const Tensor& tensor, std::int64_t rows, std::int64_t cols,
                                  const char* name) {
  if (tensor && !is_float8(tensor.dtype))
    throw Error(fmt::format("internal error: {} is {}, not in 8 bits", name, to_string(tensor.dtype)));
  return static_cast<std::uint8_t*>(optional_elements_of(tensor, tensor.dtype, rows, cols, name));
}

/// {saturated, zero_scales}
inline unsigned long long* counters(Fp8Counts* counts) {
  static_assert(sizeof(Fp8Counts) == 2 * sizeof(unsigned long long));
  return reinterpret_cast<unsigned long long*>(counts);
}

inline bool is_aligned(const void* p, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

inline dim3 at_least_one(std::int64_t blocks) {
  return dim3(static_cast<unsigned>(std::max(blocks, std::int64_t{1})));
}

}  // namespace llampi::device::cuda
