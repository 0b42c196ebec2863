#include "train/compute.hpp"

#include <algorithm>

#include "llampi/comm/nccl.hpp"
#include "llampi/core/error.hpp"

namespace llampi {
namespace {

GpuAttention attention_of(const std::string& name) {
  return name == "cudnn" ? GpuAttention::cudnn
                         : (name == "own" ? GpuAttention::own : GpuAttention::automatic);
}

/// The GPUs that this rank sees; none, and why.
std::vector<GpuProperties> visible_gpus(const GpuLibrary*& library, std::string& why) {
  library = gpu_library(why);
  if (library == nullptr) return {};
  try {
    return library->gpus();
  } catch (const Error& error) {
    why = error.what();
    return {};
  }
}

}  // namespace

Compute open_compute(World& world, const ComputeChoice& choice, const Log& log) {
  Compute compute;
  compute.mpi = &world;
  agree(world, [&] { compute.host = make_cpu_device(choice.threads); });
  // auto would take GPUs: not before their kernels have run on one.
  if (choice.device != "cuda") return compute;

  const GpuLibrary* library = nullptr;
  std::string why;
  const auto gpus = visible_gpus(library, why);
  std::int64_t without = gpus.empty() ? 1 : 0;
  world.sum(std::span(&without, 1));
  if (without > 0) {
    agree(world, [&] {
      if (choice.device != "cuda" || !gpus.empty()) return;
      throw_user_error(
          "run.device = cuda, but there is no GPU: {}; use run.device = cpu, or start on a machine with one",
          why);
    });
    if (without < world.size())
      log.warning("{} of {} ranks see no GPU, so all compute on CPUs", without, world.size());
    return compute;
  }
  const int gpu = gpu_of_rank(world, gpus, choice.share_gpu);
  agree(world, [&] {
    compute.gpu = library->make_device({.gpu = gpu,
                                        .deterministic = choice.deterministic,
                                        .tf32 = choice.tf32,
                                        .attention = attention_of(choice.attention)});
  });
  compute.gpu_name = gpus[static_cast<std::size_t>(gpu)].name;
  compute.gpu_world = make_nccl_world(world, *compute.gpu, *library);
  log.info("{}", gpu_table(world, gpus, gpu));
  return compute;
}

}  // namespace llampi
