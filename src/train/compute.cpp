#include "train/compute.hpp"

#include <algorithm>
#include <optional>

#include "llampi/comm/nccl.hpp"
#include "llampi/core/error.hpp"
#include "llampi/train/train.hpp"
#include "train/device_check.hpp"

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

/// Likewise, for `auto`: none, too, where one of them is too old for the kernels. Where there is no driver
/// the large CUDA libraries are not loaded.
std::vector<GpuProperties> usable_gpus(const GpuLibrary*& library, std::string& why) {
  if (!gpu_driver_installed()) {
    why = "no NVIDIA driver is installed";
    return {};
  }
  auto gpus = visible_gpus(library, why);
  for (const auto& gpu : gpus) {
    if (gpu.major >= kOldestGpu) continue;
    why = fmt::format("{} has compute capability {}.{}, and {}.0 is needed", gpu.name, gpu.major, gpu.minor,
                      kOldestGpu);
    return {};
  }
  return gpus;
}

int ranks_without(World& world, const std::vector<GpuProperties>& gpus) {
  std::int64_t without = gpus.empty() ? 1 : 0;
  world.sum(std::span(&without, 1));
  return static_cast<int>(without);
}

/// This rank's GPU among `gpus`; none if all compute on CPUs instead, which `auto` allows. Collective.
std::optional<GpuOfRank> choose_gpu(World& world, const ComputeChoice& choice,
                                    const std::vector<GpuProperties>& gpus, const std::string& why,
                                    const Log& log) {
  const int without = ranks_without(world, gpus);
  if (choice.device == "cuda") {
    agree(world, [&] {
      if (!gpus.empty()) return;
      throw_user_error("{} = cuda, but there is no GPU: {}; use {} = cpu, or start on a machine with one",
                       choice.option, why, choice.option);
    });
    return gpu_of_rank(world, gpus, choice.share_gpu);
  }
  if (without == world.size()) return std::nullopt;
  if (without > 0) {
    const auto reasons = world.all_gather(why);
    const auto blind = std::find_if(reasons.begin(), reasons.end(), [](const auto& r) { return !r.empty(); });
    log.warning("{} of {} ranks see no GPU, so all compute on CPUs; rank {}: {}", without, world.size(),
                blind - reasons.begin(), *blind);
    return std::nullopt;
  }
  try {
    return gpu_of_rank(world, gpus, choice.share_gpu);
  } catch (const UserError& error) {  // the same on all ranks
    log.warning("all compute on CPUs, as {} = auto allows: {}", choice.option, error.what());
    return std::nullopt;
  }
}

}  // namespace

Compute open_compute(World& world, const ComputeChoice& choice, const Log& log) {
  Compute compute;
  compute.mpi = &world;
  agree(world, [&] { compute.host = make_cpu_device(choice.threads); });
  if (choice.device == "cpu") return compute;

  const GpuLibrary* library = nullptr;
  std::string why;
  const auto gpus = choice.device == "cuda" ? visible_gpus(library, why) : usable_gpus(library, why);
  const auto gpu = choose_gpu(world, choice, gpus, why, log);
  if (!gpu) return compute;
  agree(world, [&] {
    compute.gpu = library->make_device({.gpu = gpu->index,
                                        .deterministic = choice.deterministic,
                                        .tf32 = choice.tf32,
                                        .attention = attention_of(choice.attention),
                                        .ranks = gpu->ranks});
  });
  compute.gpu_properties = gpus[static_cast<std::size_t>(gpu->index)];
  compute.gpu_world = make_nccl_world(world, *compute.gpu, *library);
  compute.gpu_opened_bytes = compute.gpu_bytes_in_use();
  log.info("{}", gpu_table(world, gpus, gpu->index));
  return compute;
}

void check_gpus(World& world, Compute& compute, DType dtype, bool tf32, std::int64_t head_dim,
                const Log& log) {
  if (!compute.on_gpu()) return;
  std::string failure;
  std::vector<ComparedTensor> compared;
  try {
    compared =
        compare_devices(*compute.gpu, *compute.host, {.dtype = dtype, .tf32 = tf32, .head_dim = head_dim});
    failure = failure_of(compared);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const auto failures = world.all_gather(failure);
  const auto first = std::find_if(failures.begin(), failures.end(), [](const auto& f) { return !f.empty(); });
  if (first == failures.end()) {
    compute.gpu_opened_bytes = compute.gpu_bytes_in_use();  // with the kernels that were loaded
    log.info("GPU check: {} tensors of a small step in {} are the CPU's", compared.size(), to_string(dtype));
    return;
  }
  const int rank = static_cast<int>(first - failures.begin());
  const auto hosts = world.all_gather(fmt::format(
      "{}, {} {}", world.topology().host, compute.gpu_properties.name, compute.gpu_properties.bus_id));
  throw CommonError(
      fmt::format("the GPU of rank {} ({}) does not compute in {} what the CPU does: {}; use cpu as the "
                  "device, and please "
                  "report it with what llampi check and llampi --version print",
                  rank, hosts[static_cast<std::size_t>(rank)], to_string(dtype), *first));
}

}  // namespace llampi
