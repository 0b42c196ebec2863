// SPDX-License-Identifier: Apache-2.0
#include "llampi/comm/compute.hpp"

#include <algorithm>
#include <optional>

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/nccl.hpp"
#include "llampi/core/error.hpp"

namespace llampi::comm {
namespace {

/// The GPUs that this rank sees; none, and why.
std::vector<device::GpuProperties> visible_gpus(const device::GpuLibrary*& library, std::string& why) {
  library = device::gpu_library(why);
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
std::vector<device::GpuProperties> usable_gpus(const device::GpuLibrary*& library, std::string& why) {
  if (!device::gpu_driver_installed()) {
    why = "no NVIDIA driver is installed";
    return {};
  }
  auto gpus = visible_gpus(library, why);
  for (const auto& gpu : gpus) {
    if (gpu.major >= device::kOldestGpu) continue;
    why = fmt::format("{} has compute capability {}.{}, and {}.0 is needed", gpu.name, gpu.major, gpu.minor,
                      device::kOldestGpu);
    return {};
  }
  return gpus;
}

int ranks_without(World& world, const std::vector<device::GpuProperties>& gpus) {
  return static_cast<int>(sum_over_ranks(world, std::int64_t{gpus.empty() ? 1 : 0}));
}

/// This rank's GPU among `gpus`; none if all compute on CPUs instead, which `auto` allows. Collective.
/// @param blind_ranks Compute::blind_ranks
std::optional<GpuOfRank> choose_gpu(World& world, const ComputeChoice& choice,
                                    const std::vector<device::GpuProperties>& gpus, const std::string& why,
                                    std::string& blind_ranks, const Log& log) {
  const int without = ranks_without(world, gpus);
  if (choice.device == device::DeviceChoice::cuda) {
    agree_on_nodes(world, [&] {
      if (!gpus.empty()) return;
      throw_user_error("{} = cuda, but no GPU is usable: {}; use {} = cpu, or start on a machine with a GPU",
                       choice.option, why, choice.option);
    });
    return gpu_of_rank(world, gpus, choice.share_gpu);
  }
  if (without == world.size()) {
    if (device::gpu_driver_installed())
      log.warning("all compute on CPUs, as {} = auto allows: {}", choice.option, why);
    return std::nullopt;
  }
  if (without > 0) {
    const auto reasons = world.all_gather(why);
    const auto blind = std::find_if(reasons.begin(), reasons.end(), [](const auto& r) { return !r.empty(); });
    blind_ranks = fmt::format("{} of {} ranks see no GPU, so all compute on CPUs; rank {}: {}", without,
                              world.size(), blind - reasons.begin(), *blind);
    log.warning("{}", blind_ranks);
    return std::nullopt;
  }
  try {
    return gpu_of_rank(world, gpus, choice.share_gpu);
  } catch (const UserError& error) {  // the same on all ranks
    log.warning("all compute on CPUs, as {} = auto allows: {}", choice.option,
                sentence_of(error, choice.name_of));
    return std::nullopt;
  } catch (const CommonError& error) {  // likewise
    blind_ranks = fmt::format("all compute on CPUs, as {} = auto allows: {}", choice.option, error.what());
    log.warning("{}", blind_ranks);
    return std::nullopt;
  }
}

}  // namespace

Compute open_compute(World& world, const ComputeChoice& choice, const Log& log) {
  Compute compute;
  compute.mpi = &world;
  // Before threads are started and memory is used.
  const auto bind = [&](const std::string& bus_id) {
    if (choice.bind) compute.binding = bind_ranks(world, {*choice.bind, choice.threads, bus_id}, log);
    agree(world, [&] { compute.host = device::make_cpu_device(choice.threads); });
  };
  if (choice.device == device::DeviceChoice::cpu) {
    bind("");
    return compute;
  }
  const device::GpuLibrary* library = nullptr;
  std::string why;
  const auto gpus =
      choice.device == device::DeviceChoice::cuda ? visible_gpus(library, why) : usable_gpus(library, why);
  const auto gpu = choose_gpu(world, choice, gpus, why, compute.blind_ranks, log);
  bind(gpu ? gpus[static_cast<std::size_t>(gpu->index)].bus_id : "");
  if (!gpu) return compute;
  agree(world, [&] {
    compute.gpu = library->make_device({.gpu = gpu->index,
                                        .deterministic = choice.deterministic,
                                        .tf32 = choice.tf32,
                                        .attention = choice.attention,
                                        .product_sms = choice.product_sms,
                                        .ranks = gpu->ranks});
  });
  compute.gpu_properties = gpus[static_cast<std::size_t>(gpu->index)];
  compute.gpu_world =
      make_nccl_world(world, *compute.gpu, *library,
                      {.patience = choice.patience, .reduction = choice.reduction, .resources = choice.nccl});
  compute.gpu_opened_bytes = compute.gpu_bytes_in_use();
  log.info("{}", gpu_table(world, gpus, gpu->index));
  return compute;
}

}  // namespace llampi::comm
