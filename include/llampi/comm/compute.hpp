// SPDX-License-Identifier: Apache-2.0
// What computes: the ranks' GPUs, or their CPUs.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "llampi/comm/binding.hpp"
#include "llampi/comm/forward.hpp"
#include "llampi/comm/nccl_resources.hpp"
#include "llampi/comm/reduction.hpp"
#include "llampi/core/config_error.hpp"
#include "llampi/core/log.hpp"
#include "llampi/device/device.hpp"
#include "llampi/device/gpu.hpp"

namespace llampi::comm {

/// What computes, of commands that have no configuration.
struct DeviceOptions {
  device::DeviceChoice device = device::DeviceChoice::automatic;  ///< GPUs compute in bfloat16
  int threads = 0;  ///< per rank; 0: OMP_NUM_THREADS, or cores / ranks on the node
};

struct ComputeChoice {
  device::DeviceChoice device = device::DeviceChoice::automatic;
  int threads = 1;         ///< CPU threads, also when a GPU computes
  bool share_gpu = false;  ///< several ranks may have one GPU
  bool deterministic = true;
  bool tf32 = false;
  device::GpuAttention attention = device::GpuAttention::automatic;
  int product_sms = 0;                    ///< device::GpuOptions
  Reduction reduction = Reduction::tree;  ///< between GPUs
  NcclResources nccl = {};
  std::chrono::milliseconds patience = kNcclPatience;  ///< NcclOptions
  std::optional<Bind> bind = {};      ///< none: cores are left as they are, and not spoken of
  std::string option = "run.device";  ///< by which the user chose, for messages
  ConfigError::Naming name_of = {};   ///< of other options, in what is logged
};

struct Compute {
  Binding binding;                       ///< of this process to its cores
  std::unique_ptr<device::Device> host;  ///< computes in host memory
  std::unique_ptr<device::Device> gpu;   ///< null on CPUs
  std::shared_ptr<World> gpu_world;      ///< collectives between GPUs, memory that travels; null on CPUs
  World* mpi = nullptr;
  device::GpuProperties gpu_properties;
  std::string
      blind_ranks;  ///< with `auto`, where CPUs compute as only some ranks have a GPU: which do not, and why
  std::int64_t gpu_opened_bytes = 0;  ///< in use when nothing was allocated yet: context and libraries

  bool on_gpu() const { return gpu != nullptr; }
  device::Device& device() const { return gpu ? *gpu : *host; }
  /// For the engine: host values go through MPI, what lies on the device through its own library.
  World& world() const { return gpu_world ? *gpu_world : *mpi; }
  /// Dense products in `dtype` per second and rank, by the data sheet; 0: unknown.
  double peak_flops(DType dtype) const {
    return on_gpu() ? llampi::device::peak_flops(gpu_properties.name, dtype) : 0;
  }
  /// GPU memory in use by all processes; 0 on CPUs.
  std::int64_t gpu_bytes_in_use() const {
    return on_gpu() ? gpu_properties.memory_bytes - gpu->available_bytes(1) : 0;
  }
};

/// Collective. `world` must outlive the result. Says in the log which rank has which GPU or, with `auto`, why
/// CPUs compute where some rank sees a GPU.
/// @throws UserError if `cuda` is asked for and some rank has no GPU, or ranks would share one
Compute open_compute(World& world, const ComputeChoice& choice, const Log& log);

}  // namespace llampi::comm
