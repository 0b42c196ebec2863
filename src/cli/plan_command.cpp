// SPDX-License-Identifier: Apache-2.0
// llampi plan
#include "cli/commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/console.hpp"
#include "cli/launch.hpp"
#include "cli/options.hpp"
#include "llampi/device/gpu.hpp"
#include "llampi/fsdp/dump.hpp"
#include "llampi/plan/report.hpp"
#include "llampi/train/compiled_run.hpp"

namespace llampi::cli {
namespace {

constexpr const char* kPlanUsage =
    R"(Usage: llampi plan [--config FILE] [--ranks N] [--per-node M] [--section.key=value ...]

Prints how much memory each rank of `llampi train` would use with this configuration, to the byte,
and how much data a step communicates. Runs in one process, without a device, and reads only the
model's config.json: no data, no weights. Takes the keys of `llampi train` from the same places. If
the device's memory is known, it says whether the run fits; if not, it exits with status 2 and says
what would make it fit. With --tflops and the speed of the network it predicts the time of a step for
each strategy.
)";

constexpr const char* kAsConfigured = "auto";

struct PlanRequest {
  train::RunShape shape;
  std::string device = kAsConfigured;
  double memory_gib = 0;
  double host_memory_gib = 0;
  double tflops = 0, in_node_gb_s = 0, network_gb_s = 0, latency_us = 5;
  bool units = false;
  bool actions = false;
  bool json = false;
};

std::vector<std::string> devices() {
  std::vector<std::string> names = {kAsConfigured, "cpu", "cuda"};
  for (const auto& gpu : device::known_gpus()) {
    if (names.back() != gpu.key) names.emplace_back(gpu.key);
  }
  return names;
}

std::vector<Option> options_of(PlanRequest& r) {
  constexpr Range kRanks{.low = 1, .high = 65536};
  return {
      {"ranks", &r.shape.ranks, "ranks of the job", {.range = kRanks}},
      {"per-node",
       &r.shape.ranks_per_node,
       "consecutive ranks per node; 0: all ranks on one node",
       {.range = kAtLeastZero}},
      {"threads",
       &r.shape.threads,
       "threads per rank (affects workspaces). 0: run.threads, otherwise OMP_NUM_THREADS, otherwise cores of "
       "this machine / ranks of a node",
       {.range = kAtLeastZero}},
      {"device",
       &r.device,
       "device to plan for: cpu, cuda (a GPU of unknown memory) or a GPU model. auto: cuda if run.device = "
       "cuda, otherwise cpu",
       {.one_of = devices()}},
      {"memory",
       &r.memory_gib,
       "device memory per rank in GiB; 0: that of the GPU model",
       {.range = kAtLeastZero}},
      {"host-memory",
       &r.host_memory_gib,
       "host memory per node in GiB, for all its ranks; offloaded state must fit there. 0: unknown",
       {.range = kAtLeastZero}},
      {"tflops",
       &r.tflops,
       "TFLOP/s that each rank reaches in forward and backward passes: its peak times the MFU of a run; 0: "
       "predict no times",
       {.range = kAtLeastZero}},
      {"in-node-gb-s",
       &r.in_node_gb_s,
       "bandwidth in GB/s of a rank to the others of its node, in each direction",
       {.range = kAtLeastZero}},
      {"network-gb-s",
       &r.network_gb_s,
       "bandwidth in GB/s of all NICs of a node together, in each direction",
       {.range = kAtLeastZero}},
      {"latency-us",
       &r.latency_us,
       "latency in microseconds of a small message between nodes",
       {.range = kAtLeastZero}},
      {"units", &r.units, "also list the FSDP units", {}, true},
      {"actions",
       &r.actions,
       "also list the actions of a step, with the buffers they read and write",
       {},
       true},
      {"json", &r.json, "print a JSON object", {}, true},
  };
}

/// Null where it is not one that is known.
const device::KnownGpu* known_gpu(const std::string& device) {
  const auto known = device::known_gpus();
  const auto found = std::ranges::find(known, device, &device::KnownGpu::key);
  return found == known.end() ? nullptr : &*found;
}

plan::Machine machine_of(const PlanRequest& r, const train::Config& config) {
  plan::Machine machine{.device = r.device};
  if (machine.device == kAsConfigured)
    machine.device = config.run.device == device::DeviceChoice::cuda ? "cuda" : "cpu";
  if (machine.device != "cpu") machine.backend = comm::Backend::nccl;
  if (const auto* gpu = known_gpu(machine.device)) machine.memory_bytes = gpu->memory_bytes;
  if (r.memory_gib > 0) machine.memory_bytes = static_cast<std::int64_t>(r.memory_gib * 0x1p30);
  return machine;
}

/// On CPUs it is the ranks' only memory.
void share_host_memory(const PlanRequest& r, plan::Machine& machine) {
  const auto bytes = static_cast<std::int64_t>(r.host_memory_gib * 0x1p30);
  if (bytes == 0) return;
  if (machine.backend == comm::Backend::nccl) {
    if (machine.memory_bytes == 0)
      throw_user_error("--host-memory needs to know the GPUs too; add --memory, or name them with --device");
    machine.host_memory_bytes = bytes;
  } else if (machine.memory_bytes == 0) {
    machine.memory_bytes = bytes / machine.most_ranks_on_a_node();
  } else {
    throw_user_error("--memory and --host-memory are the same memory on CPUs; give one of them");
  }
}

constexpr double kInNodeLatency = 3e-6;  // seconds

/// None if no seconds are asked for.
std::optional<plan::Speed> speed_of(const PlanRequest& r, const plan::Machine& machine) {
  if (r.tflops == 0) return std::nullopt;
  const int per_node = machine.most_ranks_on_a_node();
  if (per_node > 1 && r.in_node_gb_s == 0)
    throw_user_error(
        "--tflops with several ranks on a node needs the speed of their links; add --in-node-gb-s");
  if (machine.nodes() > 1 && r.network_gb_s == 0)
    throw_user_error("--tflops with several nodes needs the speed of their network; add --network-gb-s");
  plan::Speed speed{
      .flops_per_second = r.tflops * 1e12, .network = {}, .ranks_per_node = machine.ranks_per_node};
  speed.network.in_node = {r.in_node_gb_s * 1e9, kInNodeLatency};
  speed.network.between_nodes = {r.network_gb_s * 1e9 / per_node, r.latency_us * 1e-6};
  return speed;
}

/// All that `train` would run on these ranks.
std::vector<plan::StrategyTime> times_of_strategies(const train::Config& config, const train::RunShape& shape,
                                                    const plan::Machine& machine, const plan::Speed& speed) {
  std::vector<plan::StrategyTime> times;
  for (const auto& [strategy, word] : word_table(fsdp::Strategy{})) {
    try {
      const train::CompiledRun run = train::compile_run(train::with_strategy(config, strategy), shape);
      const auto report = plan::make_report(*run.model, run.options, run.groups, run.compiled, machine);
      const auto phases = plan::action_phases(*run.model, run.options, run.groups, run.compiled, speed);
      times.push_back({strategy, report.knows_memory() ? std::optional(report.fits()) : std::nullopt,
                       plan::time_of_step(run.compiled.step.actions, phases)});
    } catch (const UserError&) {
      // These ranks cannot have it: hybrid_shard on one node.
    }
  }
  return times;
}

}  // namespace

Manual plan_manual() { return with_keys(manual_of<PlanRequest>(kPlanUsage)); }

int plan_command(const Arguments& arguments) {
  PlanRequest request;
  if (!works_alone("plan", environment_variable)) return kDone;
  const train::Config config =
      resolve_config(arguments, console_log(true, stderr), Purpose::plan, options_of(request));
  plan::Machine machine = machine_of(request, config);
  request.shape.hardware =
      machine.backend == comm::Backend::nccl ? train::Hardware::gpu : train::Hardware::cpu;
  request.shape.memory_bytes = machine.memory_bytes;
  if (const auto* gpu = known_gpu(machine.device)) {
    request.shape.gpu = machine.device;
    request.shape.gpu_major = gpu->major;
    request.shape.gpu_minor = gpu->minor;
  }
  if (request.shape.hardware == train::Hardware::gpu)
    request.shape.host_memory_bytes = static_cast<std::int64_t>(request.host_memory_gib * 0x1p30);
  const train::CompiledRun run = train::compile_run(config, request.shape);
  machine.ranks = run.shape.ranks;
  machine.ranks_per_node = run.shape.ranks_per_node;
  machine.threads = run.shape.threads;
  share_host_memory(request, machine);
  plan::PlanReport report = plan::make_report(*run.model, run.options, run.groups, run.compiled, machine);
  report.speed = speed_of(request, machine);
  if (report.speed) {
    report.times = times_of_strategies(config, request.shape, machine, *report.speed);
    for (const auto& phases :
         plan::action_phases(*run.model, run.options, run.groups, run.compiled, *report.speed))
      report.action_seconds.push_back(plan::seconds(phases));
  }
  const fsdp::FitQuestion question =
      plan::fit_question(report, *run.model, run.options, run.groups, *run.sizes);
  report.max_positions = run.max_positions;
  if (report.knows_memory() && report.fits())
    report.longest_seq_len = fsdp::fitting_seq_len(question, run.max_positions);
  if (request.json) {
    print((request.actions ? plan::to_json(report, run.compiled) : plan::to_json(report)) + "\n");
  } else {
    print(plan::format_report(report));
    if (request.units) print("\n" + fsdp::format_units(*run.model, run.compiled.units));
    if (request.actions) {
      print("\nactions of a step: index, stream, operation, and after which others; operands\n" +
            fsdp::format_actions(run.compiled.step, run.compiled.specs, run.compiled.units));
    }
  }
  if (!report.knows_memory() || report.fits()) return kDone;
  throw plan::does_not_fit(report, run.compiled, question);
}

}  // namespace llampi::cli
