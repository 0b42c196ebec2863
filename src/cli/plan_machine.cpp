// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_machine.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/device/gpu.hpp"

namespace llampi::cli {
namespace {

/// Null where it is not one that is known.
const device::KnownGpu* known_gpu(const std::string& device) {
  const auto known = device::known_gpus();
  const auto found = std::ranges::find(known, device, &device::KnownGpu::key);
  return found == known.end() ? nullptr : &*found;
}

constexpr double kInNodeLatency = 3e-6;  // seconds
constexpr double kLatency = 5e-6;        // likewise, between nodes

/// The links of a rank: the machine's, but for what is given.
plan::NetworkSpeed network_of(const MachineRequest& r, const plan::Machine& machine,
                              const std::optional<plan::MachineSpeed>& figures) {
  const int per_node = machine.most_ranks_on_a_node();
  const auto has = [&](const char* key) { return figures && figures->find(key) != nullptr; };
  const std::string asks = figures ? "--machine " + r.machine : "--tflops";
  if (per_node > 1 && r.in_node_gb_s == 0 && !has("in_node_gb_s"))
    throw_user_error("{} with several ranks on a node needs the speed of their links; add --in-node-gb-s",
                     asks);
  if (machine.nodes() > 1 && r.network_gb_s == 0 && !has("network_gb_s"))
    throw_user_error("{} with several nodes needs the speed of their network; add --network-gb-s", asks);
  const auto value = [&](double given, const char* key, double otherwise) {
    return given > 0 ? given : figures ? figures->value_or(key, otherwise) : otherwise;
  };
  plan::NetworkSpeed network;
  network.ranks_share_nics = !machine.on_gpu();
  network.in_node = {value(r.in_node_gb_s, "in_node_gb_s", 0) * 1e9,
                     value(0, "in_node_latency_us", kInNodeLatency * 1e6) * 1e-6};
  // A GPU does not reach the NICs of others that are idle.
  const bool is_of_file = figures && r.network_gb_s == 0;  // otherwise it is of the user's nodes
  const double sharers = is_of_file && machine.on_gpu()
                             ? std::max<double>(per_node, figures->value_or("gpus_per_node", 1))
                             : per_node;
  network.between_nodes = {value(r.network_gb_s, "network_gb_s", 0) * 1e9 / sharers,
                           value(r.latency_us, "network_latency_us", kLatency * 1e6) * 1e-6};
  network.seconds_per_message = value(0, "message_us", network.seconds_per_message * 1e6) * 1e-6;
  network.bandwidth_reached = value(0, "bandwidth_reached", network.bandwidth_reached);
  return network;
}

void add_host_memory(const MachineRequest& r, plan::Machine& machine) {
  const auto bytes = static_cast<std::int64_t>(r.host_memory_gib * 0x1p30);
  if (bytes == 0) return;
  if (machine.on_gpu()) {
    if (machine.memory_bytes == 0)
      throw_user_error("--host-memory needs to know the GPUs too; add --memory, or name them with --device");
    machine.host_memory_bytes = bytes;
  } else if (machine.memory_bytes == 0) {  // on CPUs it is the ranks' only memory
    machine.memory_bytes = bytes / machine.most_ranks_on_a_node();
    machine.memory_option = fmt::format("--host-memory / {}", count(machine.most_ranks_on_a_node(), "rank"));
  } else {
    throw_user_error("--memory and --host-memory are the same memory on CPUs; give one of them");
  }
}

}  // namespace

std::vector<std::string> planned_devices() {
  std::vector<std::string> names = {kAsConfigured, "cpu", "cuda"};
  for (const auto& gpu : device::known_gpus()) {
    if (names.back() != gpu.key) names.emplace_back(gpu.key);
  }
  return names;
}

plan::Machine machine_of(const MachineRequest& r, const train::Config& config, train::RunShape shape) {
  plan::Machine machine;
  machine.device = r.device;
  if (machine.device == kAsConfigured && !r.machine.empty()) {
    machine.device = plan::read_machine(r.machine).device;
    const auto names = planned_devices();
    if (std::ranges::find(names, machine.device) == names.end()) machine.device = "cuda";
  } else if (machine.device == kAsConfigured)
    machine.device = config.run.device == device::DeviceChoice::cuda ? "cuda" : "cpu";
  if (const auto* gpu = known_gpu(machine.device)) machine.memory_bytes = gpu->memory_bytes;
  if (r.memory_gib > 0) {
    machine.memory_bytes = static_cast<std::int64_t>(r.memory_gib * 0x1p30);
    machine.memory_option = "--memory";
  }
  if (machine.device != "cpu") shape.backend = comm::Backend::nccl;
  if (const auto* gpu = known_gpu(machine.device)) {
    shape.gpu = machine.device;
    shape.gpu_major = gpu->major;
    shape.gpu_minor = gpu->minor;
  }
  const bool has_threads = shape.threads > 0 || config.run.threads > 0;
  machine.shape = train::resolved(std::move(shape), config);
  if (!has_threads && !machine.on_gpu() && !r.machine.empty()) {  // not those of the computer that plans
    const int cores = plan::read_machine(r.machine).cores;
    if (cores > 0) machine.shape.threads = std::max(1, cores / machine.most_ranks_on_a_node());
  }
  add_host_memory(r, machine);
  machine.shape.memory = machine.memory();
  return machine;
}

std::optional<plan::Figures> figures_of(const MachineRequest& r, const plan::Machine& machine,
                                        const train::Config& config, const std::vector<int>& node_of_rank) {
  if (r.tflops == 0 && r.machine.empty()) {
    if (r.tokens > 0) throw_user_error("--tokens needs the figures of a machine; add --machine");
    if (r.in_node_gb_s > 0 || r.network_gb_s > 0 || r.latency_us > 0)
      throw_user_error(
          "--in-node-gb-s, --network-gb-s and --latency-us need the speed of computation; add --tflops, or --machine");
    return std::nullopt;
  }
  plan::Figures figures;
  if (!r.machine.empty()) {
    figures.machine = plan::read_machine(r.machine);
    const bool for_cpus = figures.machine->device == "cpu";
    if (for_cpus != (machine.device == "cpu"))
      throw_user_error("--machine {} has the figures of {}, but the plan is for --device {}; make them agree",
                       r.machine, for_cpus ? "CPUs" : "GPUs", machine.device);
    if (for_cpus) {  // ranks have no more cores together than the machine
      const double cores = figures.machine->cores;
      figures.share = std::min<double>(machine.shape.threads, cores / machine.most_ranks_on_a_node()) / cores;
    }
  }
  figures.speed.flops_per_second = r.tflops * 1e12;
  figures.speed.node_of_rank = node_of_rank;
  figures.speed.backend = machine.shape.backend;
  figures.speed.network = network_of(r, machine, figures.machine);
  figures.speed.shares_communicators = machine.on_gpu() && config.fsdp.nccl_split_share;
  figures.speed.network.sends_parts_apart =
      machine.on_gpu() && config.fsdp.reduction == comm::Reduction::tree;
  if (figures.machine)
    figures.speed.host_link_bytes_per_second =
        figures.machine->value_or("host_link_gb_s", fsdp::kHostBytesPerSecond / 1e9) * 1e9;
  figures.attention =
      plan::attention_kernels(machine.shape.backend, config.run.attention, config.run.deterministic);
  return figures;
}

}  // namespace llampi::cli
