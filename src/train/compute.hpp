// What computes: the ranks' GPUs, or their CPUs.
#pragma once

#include <memory>
#include <string>

#include "llampi/comm/comm.hpp"
#include "llampi/core/log.hpp"
#include "llampi/device/device.hpp"
#include "llampi/device/gpu.hpp"

namespace llampi {

struct ComputeChoice {
  std::string device = "auto";  ///< cuda: GPUs; cpu; auto: CPUs too, until the GPU side has run on a GPU
  int threads = 1;              ///< of the CPU, whoever computes
  bool share_gpu = false;       ///< several ranks may have one GPU
  bool deterministic = true;
  bool tf32 = false;
  std::string attention = "auto";  ///< of GPUs: auto, cudnn, own
};

struct Compute {
  std::unique_ptr<Device> host;      ///< computes in host memory
  std::unique_ptr<Device> gpu;       ///< null on CPUs
  std::unique_ptr<World> gpu_world;  ///< collectives between GPUs, memory that travels; null on CPUs
  World* mpi = nullptr;
  std::string gpu_name;

  bool on_gpu() const { return gpu != nullptr; }
  Device& device() const { return gpu ? *gpu : *host; }
  /// For the engine: host values go through MPI, what lies on the device through its own library.
  World& world() const { return gpu_world ? *gpu_world : *mpi; }
  /// Dense products in `dtype` per second and rank, by the data sheet; 0: unknown.
  double peak_flops(DType dtype) const { return on_gpu() ? llampi::peak_flops(gpu_name, dtype) : 0; }
};

/// Collective. `world` must outlive the result.
/// @throws UserError if `cuda` is asked for and some rank has no GPU, or ranks would share one
Compute open_compute(World& world, const ComputeChoice& choice, const Log& log);

}  // namespace llampi
