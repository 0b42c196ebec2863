// SPDX-License-Identifier: Apache-2.0
#include "gpu/machine.hpp"

#include "llampi/comm/agree.hpp"
#include "llampi/comm/binding.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/nccl.hpp"
#include "llampi/device/gpu.hpp"

namespace llampi::bench {
namespace {

device::GpuAttention attention_of(const std::string& name) {
  return name == "cudnn"
             ? device::GpuAttention::cudnn
             : (name == "native" ? device::GpuAttention::native : device::GpuAttention::automatic);
}

}  // namespace

Machine open_machine(comm::World& mpi, const Options& options) {
  Machine machine;
  const auto make_host = [&] {
    comm::agree(mpi, [&] { machine.host = device::make_cpu_device(options.threads); });
  };
  if (options.device == "cpu") {
    make_host();
    machine.name = "CPU";
    machine.libraries = machine.host->describe();
    return machine;
  }

  const device::GpuLibrary* library = nullptr;
  std::vector<device::GpuProperties> gpus;
  comm::agree(mpi, [&] {
    std::string why;
    library = device::gpu_library(why);
    try {
      if (library != nullptr) gpus = library->gpus();
    } catch (const Error& error) {  // no driver
      why = error.what();
    }
    if (gpus.empty()) throw_user_error("no GPU: {}; --device cpu does without", why);
  });
  const comm::GpuOfRank gpu = comm::gpu_of_rank(mpi, gpus, options.share_gpu);
  machine.properties = gpus[static_cast<std::size_t>(gpu.index)];
  // Before threads are started and memory is used: host memory is to be near the GPU.
  machine.binding =
      comm::bind_ranks(mpi, {.threads = options.threads, .bus_id = machine.properties.bus_id}, Log());
  make_host();
  comm::agree(mpi, [&] {
    machine.gpu = library->make_device({.gpu = gpu.index,
                                        .deterministic = options.deterministic,
                                        .attention = attention_of(options.attention),
                                        .ranks = gpu.ranks});
  });
  machine.gpu_world = comm::make_nccl_world(mpi, *machine.gpu, *library);
  machine.name = machine.properties.name;
  machine.libraries = library->describe();
  machine.peak_flops = device::peak_flops(machine.name, DType::bfloat16);
  return machine;
}

}  // namespace llampi::bench
