#include "gpu/machine.hpp"

#include "llampi/comm/nccl.hpp"

namespace llampi::bench {
namespace {

GpuAttention attention_of(const std::string& name) {
  return name == "cudnn" ? GpuAttention::cudnn
                         : (name == "own" ? GpuAttention::own : GpuAttention::automatic);
}

}  // namespace

Machine open_machine(World& mpi, const Options& options) {
  Machine machine;
  agree(mpi, [&] { machine.host = make_cpu_device(options.threads); });
  machine.name = "CPU";
  machine.libraries = machine.host->describe();
  if (options.device == "cpu") return machine;

  const GpuLibrary* library = nullptr;
  std::vector<GpuProperties> gpus;
  agree(mpi, [&] {
    std::string why;
    library = gpu_library(why);
    try {
      if (library != nullptr) gpus = library->gpus();
    } catch (const Error& error) {  // no driver
      why = error.what();
    }
    if (gpus.empty()) throw_user_error("no GPU: {}; --device cpu does without", why);
  });
  const GpuOfRank gpu = gpu_of_rank(mpi, gpus, options.share_gpu);
  agree(mpi, [&] {
    machine.gpu = library->make_device({.gpu = gpu.index,
                                        .deterministic = options.deterministic,
                                        .attention = attention_of(options.attention),
                                        .ranks = gpu.ranks});
  });
  machine.gpu_world = make_nccl_world(mpi, *machine.gpu, *library);
  machine.name = gpus[static_cast<std::size_t>(gpu.index)].name;
  machine.libraries = library->describe();
  machine.peak_flops = peak_flops(machine.name, DType::bfloat16);
  return machine;
}

}  // namespace llampi::bench
