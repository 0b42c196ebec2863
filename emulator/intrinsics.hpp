// SPDX-License-Identifier: Apache-2.0
// Device functions of CUDA that the kernels use, in the global namespace as there. Masks of warp operations
// name all lanes. Each operation where threads meet knows its place in the source: threads that meet
// elsewhere are an error.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "emulator/block.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/source_location.hpp"

namespace llampi::emulator {

/// The value of lane source(own lane) of the group of `width` lanes; the own value where that is no lane of
/// the group.
template <class T, class Source>
T shuffle(unsigned mask, const T& value, int width, llampi::SourceLocation where, const Source& source) {
  require(mask == kAllLanes, "a shuffle of some lanes only", where);
  require(width > 0 && width <= kWarp && std::has_single_bit(static_cast<unsigned>(width)),
          "width of a shuffle", where);
  const Lanes<T> lanes = show_lanes(value, where);
  const int first = lane() / width * width, from = source(lane() - first);
  return from >= 0 && from < width ? lanes[first + from] : value;
}

inline unsigned ballot(unsigned mask, bool predicate, llampi::SourceLocation where) {
  require(mask == kAllLanes, "a vote of some lanes only", where);
  const Lanes<bool> lanes = show_lanes(predicate, where);
  unsigned result = 0;
  for (int i = 0; i < kWarp; ++i) result |= static_cast<unsigned>(lanes[i]) << i;
  return result;
}

/// All lanes' values put together by `combine`, from lane 0 on.
template <class T, class Combine>
T reduce(unsigned mask, T value, llampi::SourceLocation where, const Combine& combine) {
  require(mask == kAllLanes, "a reduction of some lanes only", where);
  const Lanes<T> lanes = show_lanes(value, where);
  T result = lanes[0];
  for (int i = 1; i < kWarp; ++i) result = combine(result, lanes[i]);
  return result;
}

}  // namespace llampi::emulator

#define LLAMPI_HERE llampi::SourceLocation where = llampi::SourceLocation::current()

// ---- where threads meet ----
inline void __syncthreads(LLAMPI_HERE) { llampi::emulator::meet_block(where); }
inline int __syncthreads_count(int predicate, LLAMPI_HERE) {
  return llampi::emulator::count_in_block(predicate != 0, where);
}
inline int __syncthreads_or(int predicate, LLAMPI_HERE) { return __syncthreads_count(predicate, where) > 0; }
inline int __syncthreads_and(int predicate, LLAMPI_HERE) {
  return __syncthreads_count(predicate == 0, where) == 0;
}

inline void __syncwarp(unsigned mask = llampi::emulator::kAllLanes, LLAMPI_HERE) {
  llampi::require(mask == llampi::emulator::kAllLanes, "__syncwarp of some lanes only", where);
  llampi::emulator::meet_warp(where);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, LLAMPI_HERE) {
  return llampi::emulator::shuffle(mask, value, width, where, [&](int) { return source & (width - 1); });
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, LLAMPI_HERE) {
  return llampi::emulator::shuffle(mask, value, width, where, [&](int lane) { return lane ^ bits; });
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, LLAMPI_HERE) {
  return llampi::emulator::shuffle(mask, value, width, where,
                                   [&](int lane) { return lane - static_cast<int>(delta); });
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, LLAMPI_HERE) {
  return llampi::emulator::shuffle(mask, value, width, where,
                                   [&](int lane) { return lane + static_cast<int>(delta); });
}
inline unsigned __ballot_sync(unsigned mask, int predicate, LLAMPI_HERE) {
  return llampi::emulator::ballot(mask, predicate != 0, where);
}
inline int __any_sync(unsigned mask, int predicate, LLAMPI_HERE) {
  return __ballot_sync(mask, predicate, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate, LLAMPI_HERE) {
  return __ballot_sync(mask, predicate, where) == llampi::emulator::kAllLanes;
}
template <class T>
T __reduce_add_sync(unsigned mask, T value, LLAMPI_HERE) {
  return llampi::emulator::reduce(mask, value, where, [](T a, T b) { return a + b; });
}
template <class T>
T __reduce_max_sync(unsigned mask, T value, LLAMPI_HERE) {
  return llampi::emulator::reduce(mask, value, where, [](T a, T b) { return std::max(a, b); });
}
template <class T>
T __reduce_min_sync(unsigned mask, T value, LLAMPI_HERE) {
  return llampi::emulator::reduce(mask, value, where, [](T a, T b) { return std::min(a, b); });
}
inline void __threadfence() {}
inline void __threadfence_block() {}

#undef LLAMPI_HERE

// ---- atomics: the host thread is alone ----
// The value is of the pointer's type, as CUDA's overloads convert it.
template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>, "sums of floating-point numbers by atomics differ from run to run");
  const T old = *address;
  *address = static_cast<T>(old + value);
  return old;
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = std::max(old, value);
  return old;
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = std::min(old, value);
  return old;
}
template <class T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = old | value;
  return old;
}
template <class T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return std::exchange(*address, value);
}
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  const T old = *address;
  if (old == compare) *address = value;
  return old;
}

// ---- memory ----
template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
template <class T>
void __stcs(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <class T>
void __stcg(T* address, std::type_identity_t<T> value) {
  *address = value;
}

// ---- integers and bits ----
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned from = selector >> (4 * i) & 7U;
    result |= static_cast<unsigned>(bytes >> (8 * from) & 0xFFU) << (8 * i);
  }
  return result;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(a) * b) >> 32);
}
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }

// ---- arithmetic ----
#if !defined(__GLIBC_PREREQ) || !__GLIBC_PREREQ(2, 41)  // later ones have them
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
#endif
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0F / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fdiv_rn(float a, float b) { return a / b; }
// Not contracted to a fused multiply-add, as the compiler's own operators may be.
inline float __fadd_rn(float a, float b) {
  const volatile float sum = a + b;
  return sum;
}
inline float __fsub_rn(float a, float b) {
  const volatile float difference = a - b;
  return difference;
}
inline float __fmul_rn(float a, float b) {
  const volatile float product = a * b;
  return product;
}
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) {
  const volatile double sum = a + b;
  return sum;
}
inline double __dmul_rn(double a, double b) {
  const volatile double product = a * b;
  return product;
}
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline long long __double2ll_rn(double x) { return std::llrint(x); }
inline long long __double2ll_rz(double x) { return static_cast<long long>(x); }
inline double __ll2double_rn(long long x) { return static_cast<double>(x); }

// ---- the smaller and the larger, of equal types ----
using std::max;
using std::min;
