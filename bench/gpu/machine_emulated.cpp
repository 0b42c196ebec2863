// SPDX-License-Identifier: Apache-2.0
// The emulated GPU: the program and the kernels are tried out, times mean nothing.
#include "comm/nccl/nccl_world.hpp"
#include "device/cuda/cuda_device.hpp"
#include "gpu/machine.hpp"

namespace llampi::bench {

Machine open_machine(comm::World& mpi, const Options& options) {
  Machine machine;
  machine.host = device::make_cpu_device(options.threads);
  auto gpu =
      std::make_unique<device::cuda::CudaDevice>(device::GpuOptions{.deterministic = options.deterministic});
  machine.gpu_world = std::make_unique<comm::nccl::NcclWorld>(
      mpi, comm::nccl::Gpu{*gpu, *gpu}, comm::NcclOptions{.patience = std::chrono::seconds(30)});
  machine.gpu = std::move(gpu);
  machine.name = machine.libraries = "emulated GPU";
  machine.peak_flops = 1e9;
  machine.properties.major = 9;
  return machine;
}

}  // namespace llampi::bench
