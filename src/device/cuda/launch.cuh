// SPDX-License-Identifier: Apache-2.0
// How kernels are started on a GPU, by nvcc, and store to its memory (see hardware.cuh).
#pragma once

#include <cuda_runtime.h>

#include "device/cuda/common.hpp"

namespace llampi::device::cuda {

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
            cudaStream_t stream, Arguments&&... arguments) {
  kernel<<<grid, block, shared_bytes, stream>>>(static_cast<Parameters>(arguments)...);
  check(cudaGetLastError(), "the launch of a kernel");
}

template <class T>
__device__ inline T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char llampi_dynamic_shared[];
  return reinterpret_cast<T*>(llampi_dynamic_shared);
}

/// To global memory alone. nvcc 13.0 splits some assignments of 16 bytes into four stores.
__device__ inline void store_global(uint4* to, uint4 unit) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(unit.x),
               "r"(unit.y), "r"(unit.z), "r"(unit.w)
               : "memory");
}
__device__ inline void store_global(uint2* to, uint2 unit) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(unit.x),
               "r"(unit.y)
               : "memory");
}

}  // namespace llampi::device::cuda
