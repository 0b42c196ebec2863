// SPDX-License-Identifier: Apache-2.0
// The GPU of this process as NCCL uses it: a device, and CUDA's handles of it.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "llampi/core/error.hpp"
#include "llampi/device/cuda_interop.hpp"

namespace llampi::comm::nccl {

/// @throws Error naming the call and CUDA's reason
inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw Error(fmt::format("{}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status)));
}

/// Refers to one device, which must outlive it.
struct Gpu {
  device::Device& device;
  device::CudaInterop& cuda;

  cudaStream_t stream(device::Stream stream) const {
    return static_cast<cudaStream_t>(cuda.native_stream(stream));
  }
};

}  // namespace llampi::comm::nccl
