// SPDX-License-Identifier: Apache-2.0
// What the kernels of these tests share, written as CUDA.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "emulator/kernels.hpp"
#include "llampi/core/error.hpp"

namespace llampi::emulator {

/// @throws Error naming the call
inline void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw Error(fmt::format("{}: {}", call, cudaGetErrorString(status)));
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline void round_to(float x, float& result) { result = x; }
__device__ inline void round_to(float x, __nv_bfloat16& result) { result = __float2bfloat16_rn(x); }
__device__ inline void round_to(float x, __half& result) { result = __float2half_rn(x); }

/// Every lane has the sum over its warp.
__device__ inline float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffU, x, offset);
  return x;
}
/// Every thread has the sum over its block, which is whole warps.
__device__ inline float block_sum(float x) {
  __shared__ float partial[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = warp_sum(x);
  __syncthreads();  // a former call has been read
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return warp_sum(lane < static_cast<int>(blockDim.x) / 32 ? partial[lane] : 0.0F);
}

}  // namespace llampi::emulator
