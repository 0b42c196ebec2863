// SPDX-License-Identifier: Apache-2.0
// What kernels share: conversions, vectors of 16 bytes, reductions over warps and blocks.
//
// Conventions: activations and weights are T = float, __nv_bfloat16 or __half, arithmetic is float32,
// gradients of weights are float32 or T. No atomics on floating-point numbers: the same bits in every run.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "device/cuda/common.hpp"
#include "device/cuda/hardware.cuh"

namespace llampi::device::cuda {

inline constexpr float kLog2E = 1.44269504088896340736F;

/// Of a block of kernels that go element by element.
inline constexpr int kElementThreads = 256;

/// dispatch(dtype, [&](auto tag) { using T = typename decltype(tag)::type; ... });
template <class Work>
void dispatch(DType dtype, const Work& work) {
  switch (dtype) {
    case DType::float32:
      return work(Tag<float>{});
    case DType::bfloat16:
      return work(Tag<__nv_bfloat16>{});
    case DType::float16:
      return work(Tag<__half>{});
    default:
      throw Error(fmt::format("the GPU has no kernels for {}", to_string(dtype)));
  }
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }
template <class T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}

/// Two float32 rounded to nearest even as one register, `low` in the lower half.
template <class T>
__device__ inline std::uint32_t pack_pair(float low, float high);
template <>
__device__ inline std::uint32_t pack_pair<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}
template <>
__device__ inline std::uint32_t pack_pair<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

/// As launch(), for more than the 48 KiB of shared memory that a block has unasked.
template <class... Parameters, class... Arguments>
void launch_with_shared(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
                        cudaStream_t stream, Arguments&&... arguments) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
        "the shared memory of a kernel");
  launch(kernel, grid, block, shared_bytes, stream, std::forward<Arguments>(arguments)...);
}

/// 16 bytes of T, read and written at once; pointers are aligned to 16 bytes.
template <class T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};
template <class T>
__device__ inline Pack<T> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T>*>(from);
}
template <class T>
__device__ inline void store_pack(T* to, const Pack<T>& pack) {
  *reinterpret_cast<Pack<T>*>(to) = pack;
}

template <class T>
__device__ inline Pack<T> pack_of(const float (&x)[Pack<T>::kSize]) {
  Pack<T> pack;
  if constexpr (sizeof(T) == 2) {
    std::uint32_t words[Pack<T>::kSize / 2];
    for (int w = 0; w < Pack<T>::kSize / 2; ++w) words[w] = pack_pair<T>(x[2 * w], x[2 * w + 1]);
    memcpy(&pack, words, sizeof pack);
  } else {
    memcpy(&pack, x, sizeof pack);
  }
  return pack;
}

/// Of a mean of squares: 1 / sqrt(x), and NaN where they are too large for float32. Not 0: then a run that diverges would look
/// like one that has come to an end.
__device__ inline float inverse_root(float x) { return x < INFINITY ? 1.0F / sqrtf(x) : NAN; }

/// Sums over a warp, in a fixed order; every lane has the result.
__device__ inline float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffU, x, offset);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, offset));
  return x;
}
/// Over a block of up to 1024 threads, a multiple of 32; every thread has the result. All threads call it.
__device__ inline float block_sum(float x) {
  __shared__ float partial[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = warp_sum(x);
  __syncthreads();  // a former call has been read
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return warp_sum(lane < static_cast<int>(blockDim.x) / 32 ? partial[lane] : 0.0F);
}
__device__ inline float block_max(float x) {
  __shared__ float partial[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = warp_max(x);
  __syncthreads();
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return warp_max(lane < static_cast<int>(blockDim.x) / 32 ? partial[lane] : -INFINITY);
}

}  // namespace llampi::device::cuda
