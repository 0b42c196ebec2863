// SPDX-License-Identifier: Apache-2.0
// What computes: this rank's GPU through the plugin, a CPU, or an emulated GPU. Defined twice, in machine.cpp
// and machine_emulated.cpp.
#pragma once

#include <memory>
#include <string>

#include "gpu/options.hpp"
#include "llampi/comm/binding.hpp"
#include "llampi/comm/forward.hpp"
#include "llampi/device/device.hpp"
#include "llampi/device/gpu.hpp"

namespace llampi::bench {

struct Machine {
  comm::Binding binding;                 ///< to cores near the GPU, as a run has it
  std::unique_ptr<device::Device> host;  ///< computes in host memory
  std::unique_ptr<device::Device> gpu;   ///< null on CPUs
  std::unique_ptr<comm::World> gpu_world;
  std::string name;                       ///< "NVIDIA H100 80GB HBM3"
  std::string libraries;                  ///< "CUDA 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0, NCCL 2.28.9"
  double peak_flops = 0;                  ///< in bfloat16 by the data sheet; 0: unknown
  device::GpuProperties properties = {};  ///< of the GPU

  device::Device& device() const { return gpu ? *gpu : *host; }
  comm::World& world(comm::World& mpi) const { return gpu_world ? *gpu_world : mpi; }
};

/// Collective. `mpi` must outlive the result. @throws UserError if there is no GPU and one is asked for
Machine open_machine(comm::World& mpi, const Options& options);

}  // namespace llampi::bench
