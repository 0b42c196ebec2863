// SPDX-License-Identifier: Apache-2.0
// llampi plan
#include "cli/commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <set>

#include "cli/config_values.hpp"
#include "cli/console.hpp"
#include "cli/device_options.hpp"
#include "cli/keys.hpp"
#include "cli/launch.hpp"
#include "cli/option_table.hpp"
#include "cli/options.hpp"
#include "cli/plan_machine.hpp"
#include "llampi/core/split.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/added_work.hpp"
#include "llampi/fsdp/dump.hpp"
#include "llampi/io/output_file.hpp"
#include "llampi/plan/memory_svg.hpp"
#include "llampi/plan/report.hpp"
#include "llampi/plan/run_time.hpp"
#include "llampi/plan/tune_config.hpp"
#include "llampi/train/compiled_run.hpp"

namespace llampi::cli {
namespace {

constexpr const char* kPlanUsage =
    R"(Usage: llampi plan [--config FILE] [--ranks N] [--per-node M] [--section.key=value ...]

Prints how much memory each rank of `llampi train` would use with this configuration, and with
--details how much data a step communicates. llampi's own buffers are exact to the byte; what CUDA and
NCCL take is an estimate. Runs in one process, without a device, and reads only the model's config.json:
no data, no weights. Takes the keys of `llampi train` from the same places. If the device's memory is
known, it says whether the run fits. If the run does not fit, it exits with status 2 and says what would
make it fit. With --machine (h100, h200, a100, workstation-2-cores, or a file that `llampi bench
--calibrate` writes) it predicts the time of a step and its parts, and compares strategies; --tflops and
the speeds of the network override the machine's. With --tune it searches for the fastest configuration
that fits.
)";

constexpr Range kGib{.low = 0, .high = 1e6};  // no machine has more; the same number in bytes is refused

struct PlanRequest {
  train::RunShape shape;
  MachineRequest machine;
  bool tune = false, tune_precision = false;
  std::string output, svg;
  bool details = false;
  bool units = false;
  bool actions = false;
  bool json = false;
};

/// "8", or the ranks of each node: "8,8,4".
Spelled spelled_ranks_per_node(train::RunShape& target) {
  return {.write =
              [&target] {
                return target.node_ranks.empty() ? std::to_string(target.ranks_per_node)
                                                 : fmt::format("{}", fmt::join(target.node_ranks, ","));
              },
          .read =
              [&target](const std::string& text) {
                std::vector<int> numbers;
                const char* const end = text.ends_with(',') ? "," : "";  // an empty one at the end too
                for (const auto& part : split(text + end, ',')) {
                  const auto number = parse_number<int>(part);
                  if (!number || *number < 0) return false;
                  numbers.push_back(*number);
                }
                if (numbers.empty() || (numbers.size() > 1 && std::ranges::min(numbers) == 0)) return false;
                target.ranks_per_node = numbers.front();
                target.node_ranks = numbers.size() > 1 ? numbers : std::vector<int>();
                return true;
              },
          .advice = "use a number of ranks, or the ranks of each node as in 8,8,4"};
}

std::vector<Option> options_of(PlanRequest& r) {
  constexpr Range kRanks{.low = 1, .high = fsdp::kMostRanks};
  return {
      {"ranks", &r.shape.ranks, "ranks of the job", {.range = kRanks}},
      {"per-node",
       spelled_ranks_per_node(r.shape),
       "consecutive ranks per node; the last node has the rest. 0: all ranks on one node. N,N,...: the ranks of "
       "each node",
       {.name = "M|N,N,..."}},
      {"threads",
       &r.shape.threads,
       "threads per rank (affects workspaces and, on CPUs, times). 0: run.threads, otherwise the cores of --machine / ranks of a "
       "node, otherwise OMP_NUM_THREADS, otherwise the cores of this machine / ranks of a node",
       {.range = kThreads}},
      {"device",
       &r.machine.device,
       "device to plan for: cpu, cuda (a GPU of unknown memory) or a GPU model. auto: cuda if run.device = "
       "cuda, otherwise cpu",
       {.one_of = planned_devices()}},
      {"memory",
       &r.machine.memory_gib,
       "device memory per rank in GiB; 0: that of the GPU model",
       {.range = kGib}},
      {"host-memory",
       &r.machine.host_memory_gib,
       "host memory per node in GiB, for all its ranks; offloaded state and activations must fit there. 0: unknown",
       {.range = kGib}},
      {"machine",
       &r.machine.machine,
       fmt::format(
           "predict the time of a step with the figures of this machine: {}, or a machine file. Also the device to "
           "plan for, if --device is auto",
           fmt::join(plan::known_machines(), ", ")),
       {.name = "NAME|FILE"}},
      {"tokens",
       spelled_tokens(r.machine.tokens),
       "tokens of the whole run, such as 15T or 1e11, for its days and device-hours (with --machine); 0: not predicted",
       {.name = "X"}},
      {"tflops",
       &r.machine.tflops,
       "TFLOP/s that each rank reaches in forward and backward passes: its peak times the MFU of a run. 0: "
       "use those of --machine, or predict no times",
       {.range = kAtLeastZero}},
      {"in-node-gb-s",
       &r.machine.in_node_gb_s,
       "bandwidth in GB/s of a rank to the others of its node, in each direction. 0: that of --machine",
       {.range = kAtLeastZero}},
      {"network-gb-s",
       &r.machine.network_gb_s,
       "bandwidth in GB/s of all NICs of a node together, in each direction. 0: that of --machine",
       {.range = kAtLeastZero}},
      {"latency-us",
       &r.machine.latency_us,
       "latency in microseconds of a small message between nodes. 0: that of --machine, otherwise 5",
       {.range = kAtLeastZero}},
      {"tune",
       &r.tune,
       "search the strategy, the shard group, the micro-batch, gradient accumulation, recomputation and offloading for the most "
       "predicted tokens/s that fits (with --machine); of those within 0.1 %, the one that needs least memory. Keys on the "
       "command line and in the environment are kept unless they are auto, and so is train.global_batch; keys of the configuration file may change. "
       "A strategy that needs another value of a kept key is not searched: with fsdp.shard_group_size=4 only hybrid ones are",
       {},
       true},
      {"tune-precision",
       &r.tune_precision,
       "let --tune also change the numbers: fsdp.param_dtype and fsdp.product_dtype",
       {},
       true},
      {"output",
       &r.output,
       "with --tune: new configuration file to write; an existing file is never replaced",
       {.name = "FILE"}},
      {"svg",
       &r.svg,
       "new file to write a picture to: the memory of a rank over a step, by category; an existing file is never replaced",
       {.name = "FILE"}},
      {"details",
       &r.details,
       "also list memory by purpose and by arena, the moment of the step that needs most, and the bytes that are "
       "communicated",
       {},
       true},
      {"units", &r.units, "also list the FSDP units", {}, true},
      {"actions",
       &r.actions,
       "also list the actions of a step, with the buffers they read and write",
       {},
       true},
      {"json", &r.json, "print a JSON object", {}, true},
  };
}

/// The ranks of the nodes, where they are given one by one, are those of the job.
void set_ranks(train::RunShape& shape) {
  if (shape.node_ranks.empty()) return;
  const std::int64_t ranks =
      std::accumulate(shape.node_ranks.begin(), shape.node_ranks.end(), std::int64_t{0});
  if (ranks > fsdp::kMostRanks)
    throw_user_error("--per-node has {} ranks in total; llampi plan takes at most {}", ranks,
                     fsdp::kMostRanks);
  if (shape.ranks > 1 && shape.ranks != ranks)
    throw_user_error("--ranks {} is not the sum of --per-node {}, which is {}; leave --ranks out",
                     shape.ranks, fmt::format("{}", fmt::join(shape.node_ranks, ",")), ranks);
  shape.ranks = static_cast<int>(ranks);
}

io::OutputFile new_file(const std::string& path, const char* option) {
  return {.path = path,
          .kind = option,
          .is_own = [](const auto&) { return false; },
          .option = {},
          .advice = "name another file"};
}

io::OutputFile configuration_file(const PlanRequest& r) { return new_file(r.output, "replaced by --tune"); }
io::OutputFile picture_file(const PlanRequest& r) { return new_file(r.svg, "replaced by --svg"); }

void check_options(const PlanRequest& r) {
  if (!r.tune && (r.tune_precision || !r.output.empty()))
    throw_user_error("{} needs --tune", r.tune_precision ? "--tune-precision" : "--output");
  if (r.tune && r.machine.machine.empty() && r.machine.tflops == 0)
    throw_user_error("--tune needs the speed of the machine; add --machine");
  if (r.tune && !r.svg.empty())
    throw_user_error(
        "--svg is not possible with --tune; write the configuration with --output, then plan it");
  if (r.machine.tokens > 0 && r.machine.tflops > 0)
    throw_user_error("--tokens needs the figures of a machine file; use --machine without --tflops");
  for (const auto& [given, option] : {std::pair(r.details, "--details"),
                                      {r.units, "--units"},
                                      {r.actions, "--actions"},
                                      {r.machine.tokens > 0, "--tokens"}}) {
    if (r.tune && given)
      throw_user_error("{} is not possible with --tune; write the configuration with --output, then plan it",
                       option);
  }
  if (!r.output.empty()) configuration_file(r).check();
  if (!r.svg.empty()) picture_file(r).check();
}

/// Few nodes have more than the usual number of GPUs, and links inside a node are several times as fast.
void warn_of_one_large_node(const std::optional<plan::Figures>& figures, const plan::Machine& machine,
                            const Log& log) {
  if (!figures || !figures->machine || !machine.on_gpu() || machine.nodes() > 1) return;
  const double usual = figures->machine->value_or("gpus_per_node", 0);
  if (usual == 0 || machine.shape.ranks <= usual) return;
  log.warning(
      "all {} GPUs are taken to be on one node, with its links between them; give --per-node {:g} for several nodes",
      machine.shape.ranks, usual);
}

void warn_of_other_device(const MachineRequest& request, const std::optional<plan::Figures>& figures,
                          const std::string& planned, const Log& log) {
  if (!figures || !figures->machine) return;
  const std::string& measured = figures->machine->device;
  if (measured != planned && planned != "cuda")
    log.warning("the speeds are those of {} (--machine {}), and memory is planned for {} (--device)",
                measured, request.machine, planned);
}

/// figures_of(), with what the user should know of them.
std::optional<plan::Figures> figures_with_warnings(const PlanRequest& request, const train::Config& config,
                                                   const plan::Machine& machine,
                                                   const std::vector<int>& node_of_rank, const Log& log) {
  auto figures = figures_of(request.machine, machine, config, node_of_rank);
  warn_of_other_device(request.machine, figures, machine.device, log);
  warn_of_one_large_node(figures, machine, log);
  return figures;
}

/// Of a step as configured, each operation of which is counted.
plan::Prediction predict(const train::CompiledRun& run, const plan::Job& job, const plan::Figures& figures,
                         const plan::TimedActions& timed, double budget_tokens) {
  const auto tokens = static_cast<double>(job.tokens());
  return {.machine = figures.machine->name,
          .parts = plan::parts_of(timed.work, *timed.speed.costs),
          .time = timed.time,
          .tokens = tokens,
          .step_flops =
              fsdp::flops_per_token(*run.model, run.options, run.compiled) * tokens / job.machine.shape.ranks,
          .peak_flops = figures.share * plan::peak_of(*figures.machine, run.options.precision.compute),
          .budget_tokens = budget_tokens,
          .ranks = job.machine.shape.ranks};
}

/// Each, and why these ranks cannot have it.
std::vector<plan::StrategyTime> times_of_strategies(const train::Config& config, const train::RunShape& shape,
                                                    const plan::Figures& figures) {
  std::vector<plan::StrategyTime> times;
  for (const auto& [strategy, word] : word_table(fsdp::Strategy{})) {
    try {
      const train::CompiledRun run = train::compile_run(train::with_strategy(config, strategy), shape);
      const bool fits = shape.memory.holds(run.compiled.arena_bytes, run.mesh, run.options);
      times.push_back({.strategy = strategy,
                       .fits = shape.memory.on_device ? std::optional(fits) : std::nullopt,
                       .time = plan::time_actions(run, figures).time,
                       .impossible = {}});
    } catch (const UserError& error) {
      times.push_back({.strategy = strategy, .fits = {}, .time = {}, .impossible = sentence_of(error)});
    }
  }
  return times;
}

plan::TimeReport time_report(const PlanRequest& request, const train::Config& config,
                             const train::CompiledRun& run, const plan::Job& job,
                             const plan::Figures& figures) {
  const plan::TimedActions timed = plan::time_actions(run, figures);
  plan::TimeReport report;
  report.speed = timed.speed;
  report.strategies = times_of_strategies(config, job.machine.shape, figures);
  for (const auto& of_action : timed.phases) report.action_seconds.push_back(plan::seconds(of_action));
  if (figures.by_operation()) report.prediction = predict(run, job, figures, timed, request.machine.tokens);
  return report;
}

/// Whether deterministic attention of whole sequences would be cuDNN's, if memory were left for it.
bool lacks_workspace(const train::Config& config, const train::CompiledRun& run, const plan::Machine& machine,
                     const plan::FitReport& fit) {
  const bool needs = machine.on_gpu() && machine.knows_memory() && fit.fits() &&
                     device::deterministic_attention_keeps_dp(run.shape.gpu_major) &&
                     config.run.deterministic && config.run.attention != device::GpuAttention::native &&
                     run.options.precision.compute != DType::float32;
  const model::BatchShape& batch = run.options.batch;
  const auto lacks = [&](const model::LayerSpec& spec) {
    return spec.attention &&
           device::attention_pieces(*spec.attention, 1, batch.seq_len, batch.attention_room) == 0;
  };
  return needs && std::ranges::any_of(run.compiled.specs, lacks);
}

/// What to do with the keys that were found.
std::string format_keys(const std::vector<plan::TunedKey>& keys, const PlanRequest& request) {
  if (keys.empty())
    return "\nnothing to change\n" +
           (request.output.empty() ? "" : fmt::format("wrote {}: the same configuration\n", request.output));
  std::string text =
      request.output.empty()
          ? "\nfor the chosen one, set (--output FILE writes a configuration with these options)\n"
          : fmt::format("\nwrote {}: the configuration with\n", request.output);
  for (const auto& [key, value, before] : keys)
    text += fmt::format("  --{}={}    (was {})\n", key, value, before);
  return text;
}

/// A key that is `auto` leaves the choice to the search.
std::set<std::string> kept_keys(std::set<std::string> above_file, const train::Config& config) {
  const auto values = values_of(config);
  std::erase_if(above_file, [&](const std::string& key) { return values.at(key) == "auto"; });
  return above_file;
}

/// Prints what was found, and writes it where that is asked for.
int report_tuning(const PlanRequest& request, const plan::TuneQuestion& question, std::set<std::string> given,
                  const Log& log) {
  const plan::TunedConfig tuned = plan::tune_config(question);
  const auto keys = changed_keys(question.config, tuned.config);
  for (const auto& key : keys) given.insert(key.key);
  if (!request.output.empty()) configuration_file(request).write(to_ini(tuned.config, &given));
  const auto tokens = static_cast<double>(question.config.train.global_batch * question.config.data.seq_len);
  if (request.json) {
    print(plan::to_json(tuned.tuning, tuned.configured, tokens, keys, tuned.notes) + "\n");
    return kDone;
  }
  for (const auto& note : tuned.notes) log.info("{}", note);
  print(plan::format_tuning(tuned.tuning, tuned.configured, tokens, question.machine.memory_bytes) +
        format_keys(keys, request));
  return kDone;
}

}  // namespace

Manual plan_manual() { return with_keys(manual_of<PlanRequest>(kPlanUsage)); }

int plan_command(const Arguments& arguments) {
  PlanRequest request;
  if (!works_alone("plan", environment_variable)) return kDone;
  const Log log = console_log(true, stderr);
  std::set<std::string> given, above_file;
  train::Config config =
      resolve_config(arguments, log, Purpose::plan, options_of(request), &given, &above_file);
  check_options(request);
  set_ranks(request.shape);
  choose_global_batch(config, request.shape.ranks, given, log);
  const plan::Machine machine = machine_of(request.machine, config, request.shape);
  if (request.tune) {
    const auto figures =
        figures_with_warnings(request, config, machine, train::nodes_of_ranks(machine.shape), log);
    const auto kept = kept_keys(above_file, config);
    return report_tuning(request,
                         {.config = config,
                          .kept = kept,
                          .keeps = [&](const auto& other) { return are_kept(kept, config, other); },
                          .name_of = key_of,
                          .machine = machine,
                          .figures = *figures,
                          .may_change_numbers = request.tune_precision},
                         given, log);
  }
  const train::CompiledRun run = train::compile_run(config, machine.shape);
  plan::PlanReport report = plan::make_report(*run.model, {machine, run.options, run.mesh}, run.compiled);
  const plan::Job& job = report.job;
  report.choices.attention_lacks_workspace = lacks_workspace(config, run, machine, report.fit);
  const auto figures = figures_with_warnings(request, config, machine, run.node_of_rank, log);
  if (figures) report.time = time_report(request, config, run, job, *figures);
  const fsdp::FitQuestion question = plan::fit_question(job, *run.model, *run.sizes);
  report.fit.max_positions = run.max_positions;
  if (machine.knows_memory() && report.fit.fits())
    report.fit.longest_seq_len = train::longest_seq_len(config, machine.shape, run);
  if (!request.svg.empty()) picture_file(request).write(plan::memory_svg(job, run.compiled));
  if (request.json) {
    print((request.actions ? plan::to_json_with_actions(report, run.compiled)
                           : plan::to_json(report, run.compiled)) +
          "\n");
  } else {
    print(plan::format_report(report));
    if (request.details) print("\n" + plan::format_details(report, run.compiled));
    if (request.units) print("\n" + fsdp::format_units(*run.model, run.compiled.units));
    if (request.actions) {
      print("\nactions of a step: index, stream, operation, and after which others; operands\n" +
            fsdp::format_actions(run.compiled.step, run.compiled.specs, run.compiled.units));
    }
  }
  if (report.fit.fits()) return kDone;
  throw plan::does_not_fit(machine, report.fit, run.compiled, question);
}

}  // namespace llampi::cli
