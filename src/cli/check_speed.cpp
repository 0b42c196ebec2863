// SPDX-License-Identifier: Apache-2.0
#include "cli/check_speed.hpp"

#include <algorithm>
#include <numeric>

#include "cli/keys.hpp"
#include "cli/plan_machine.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/measure/measure.hpp"
#include "llampi/plan/collective_time.hpp"
#include "llampi/plan/run_time.hpp"
#include "llampi/plan/step_time.hpp"
#include "llampi/train/compiled_run.hpp"

namespace llampi::cli {
namespace {

using train::PreflightCheck;
using train::Verdict;

constexpr double kSeconds = 0.2;  // for each collective, at each size

/// Why these figures say nothing about this job; empty: they do.
std::string missing(const plan::MachineSpeed& machine, const measure::Result& measured) {
  for (const auto& [needed, key] :
       {std::pair{measured.ranks > measured.nodes, "in_node_gb_s"}, {measured.nodes > 1, "network_gb_s"}}) {
    if (needed && machine.find(key) == nullptr)
      return fmt::format(
          "{} has no {}; use a machine file that has it, or make one on these ranks with llampi bench --calibrate",
          machine.name, key);
  }
  return "";
}

/// Of the largest messages.
std::vector<MeasuredCollective> largest_collectives(const measure::Result& measured,
                                                    const plan::Figures& figures) {
  std::vector<int> members(static_cast<std::size_t>(measured.ranks));
  std::iota(members.begin(), members.end(), 0);
  const auto group = plan::shape_of(members, figures.speed.node_of_rank);
  const auto& network = figures.speed.network;
  std::vector<MeasuredCollective> found;
  for (const auto& [name, phases_of] : {std::pair{"all_gather", &plan::all_gather_phases},
                                        {"reduce_scatter", &plan::reduce_scatter_phases},
                                        {"all_reduce", &plan::all_reduce_phases}}) {
    const measure::Row* largest = nullptr;
    double bytes = 0;
    for (const auto& row : measured.rows) {
      if (row.group != "collective" || !row.name.starts_with(fmt::format("{} ", name))) continue;
      if (row.seconds * row.rate > bytes) largest = &row, bytes = row.seconds * row.rate;
    }
    if (largest == nullptr) continue;
    const double seconds = plan::seconds(phases_of(network, group, bytes * 1e9, figures.speed.route));
    found.push_back({.name = name,
                     .seconds = largest->seconds,
                     .bus_rate = largest->bus_rate,
                     .predicted_bus_rate = largest->bus_rate * largest->seconds / seconds});
  }
  return found;
}

PreflightCheck verdict_on_collectives(const std::vector<MeasuredCollective>& collectives,
                                      const std::string& machine) {
  if (collectives.empty()) return {"bandwidth", Verdict::skip, "one rank has none"};
  std::vector<std::string> all, slow;
  for (const auto& c : collectives) {
    const std::string text =
        fmt::format("{} {:.2f} GB/s ({:.2f} predicted)", c.name, c.bus_rate, c.predicted_bus_rate);
    all.push_back(text);
    if (c.bus_rate < kSlowCollectiveShare * c.predicted_bus_rate) slow.push_back(text);
  }
  if (slow.empty())
    return {"bandwidth", Verdict::pass,
            fmt::format("bus bandwidth, machine {}: {}", machine, fmt::join(all, ", "))};
  return {
      "bandwidth", Verdict::fail,
      fmt::format(
          "less than half of the bus bandwidth that machine {} has: {}; look for a slow link above, for NICs "
          "that are not used, and for other jobs on the network",
          machine, fmt::join(slow, ", "))};
}

PreflightCheck verdict_on_speed(double measured, double predicted, const std::string& machine) {
  const std::string text =
      fmt::format("{} tokens/s in the fastest step, {} predicted with machine {}: {:.0f} %",
                  with_separators(measured), with_separators(predicted), machine, 100 * measured / predicted);
  if (measured >= kSlowStepShare * predicted) return {"speed", Verdict::pass, text};
  return {
      "speed", Verdict::fail,
      text +
          "; look for slow ranks and links above, or make a machine file here with llampi bench --calibrate"};
}

}  // namespace

MachineComparison compare_with_machine(comm::World& world, const train::Config& config,
                                       const std::string& machine_name,
                                       const train::PreflightFigures& figures) {
  const plan::MachineSpeed machine = plan::read_machine(machine_name);
  measure::Settings settings;
  settings.seconds = kSeconds;
  settings.whole_steps = settings.strategies = settings.single = false;
  const measure::Result measured = measure::measure(world, config, settings, Log());
  MachineComparison result;
  const auto skip_both = [&](const std::string& reason) {
    result.checks = {{"bandwidth", Verdict::skip, reason}, {"speed", Verdict::skip, reason}};
    return result;
  };
  if (const bool for_cpus = machine.device == "cpu", on_cpus = measured.gpu == "cpu"; for_cpus != on_cpus) {
    result.checks = {
        {"bandwidth", Verdict::skip, "not checked after this failure"},
        {"speed", Verdict::fail,
         fmt::format("machine {} has the figures of {}, but these ranks compute on {}; give a machine of "
                     "that kind, or look at run.device",
                     machine.name, for_cpus ? "CPUs" : "GPUs", on_cpus ? "CPUs" : "GPUs")}};
    return result;
  }
  if (const auto reason = missing(machine, measured); !reason.empty()) return skip_both(reason);

  const MachineRequest request{.device = measured.gpu, .machine = machine_name};
  plan::Machine planned = machine_of(request, config, measured.shape);
  planned.shape.memory = measured.shape.memory;  // as a run decides by it
  const plan::Figures known = *figures_of(request, planned, config, world.topology().node_of_rank);
  result.collectives = largest_collectives(measured, known);
  result.checks.push_back(verdict_on_collectives(result.collectives, machine.name));
  if (figures.step_seconds == 0 || !config.train.micro_batch) {
    result.checks.push_back({"speed", Verdict::skip,
                             figures.step_seconds == 0
                                 ? "no step was measured"
                                 : "train.micro_batch = auto: the plan needs a number"});
    return result;
  }
  const train::CompiledRun run = train::compile_run(config, planned.shape);
  double seconds = 0;
  try {
    seconds = plan::time_actions(run, known).time.seconds;
  } catch (const UserError& error) {  // the machine lacks a figure that this step needs
    result.checks.push_back({"speed", Verdict::skip, sentence_of(error)});
    return result;
  }
  result.predicted_tokens_per_second = figures.tokens_per_second * figures.step_seconds / seconds;
  result.checks.push_back(
      verdict_on_speed(figures.tokens_per_second, result.predicted_tokens_per_second, machine.name));
  return result;
}

}  // namespace llampi::cli
