// SPDX-License-Identifier: Apache-2.0
// How kernels are started on a GPU, by nvcc (see hardware.cuh).
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

}  // namespace llampi::device::cuda
