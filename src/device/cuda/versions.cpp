// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/versions.hpp"

#include <cuda_runtime.h>
#include <nccl.h>
#ifdef LLAMPI_CUDNN
#include <cudnn.h>
#endif

#include "device/cuda/common.hpp"
#include "device/cuda/product_library.hpp"

namespace llampi::device::cuda {
namespace {

std::string cuda_version() {
  int version = 0;
  check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  return fmt::format("CUDA {}.{}", version / 1000, version / 10 % 100);
}

std::string nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "NCCL";
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string cudnn_version() {
#ifdef LLAMPI_CUDNN
  const std::size_t version = cudnnGetVersion();
  return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
#else
  return "no cuDNN";
#endif
}

}  // namespace

std::string library_versions() {
  return fmt::format("{}, {}, {}, {}", cuda_version(), product_library_version(), cudnn_version(),
                     nccl_version());
}

}  // namespace llampi::device::cuda
