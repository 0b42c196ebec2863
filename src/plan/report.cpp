// SPDX-License-Identifier: Apache-2.0
// The report as data.
#include "llampi/plan/report.hpp"

#include <algorithm>

#include "llampi/core/config_error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/dump.hpp"
#include "llampi/fsdp/fit_advice.hpp"

namespace llampi::plan {
namespace {

Traffic traffic_of(const fsdp::Program& program) {
  Traffic traffic;
  for (const auto& action : program.actions) {
    if (action.op == fsdp::Op::unshard) traffic.gathered += action.bytes;
    if (action.op == fsdp::Op::reduce) traffic.reduced += action.bytes;
    if (action.op == fsdp::Op::all_reduce || action.op == fsdp::Op::reduce_scatter)
      traffic.replica_reduced += action.bytes;
    if (action.op == fsdp::Op::all_gather) traffic.replica_gathered += action.bytes;
    if (action.op == fsdp::Op::h2d) traffic.host_to_device += action.bytes;
    if (action.op == fsdp::Op::d2h) traffic.device_to_host += action.bytes;
  }
  return traffic;
}

std::int64_t kept_bytes(const std::vector<fsdp::PurposeBytes>& rows, fsdp::Arena arena) {
  std::int64_t bytes = 0;
  for (const auto& row : rows) {
    if (row.persistent && row.arena == arena) bytes += row.bytes;
  }
  return bytes;
}

std::array<CategoryReports, fsdp::kArenas> categories_of(const std::vector<fsdp::PurposeBytes>& peak) {
  std::array<CategoryReports, fsdp::kArenas> categories{};
  for (const auto& row : peak) {
    categories[static_cast<std::size_t>(row.arena)][static_cast<std::size_t>(row.purpose.category())] +=
        CategoryReport{.kept = row.persistent ? row.bytes : 0, .peak = row.bytes};
  }
  return categories;
}

void describe_peak(PlanReport& report, const fsdp::CompiledModel& compiled) {
  report.peak_action = fsdp::peak_action(compiled.step).value();
  const fsdp::Action& action = compiled.step.actions[static_cast<std::size_t>(report.peak_action)];
  report.peak_description = fsdp::to_string(action, compiled.specs, compiled.units);
  report.peak_purposes = fsdp::bytes_alive_at(compiled.step, report.peak_action);
  for (const auto& row : report.peak_purposes) {
    if (!row.persistent) report.peak_transient += row.bytes;
  }
  report.categories = categories_of(report.peak_purposes);
}

}  // namespace

std::string Machine::device_in_words() const {
  if (device == "cpu") return "a rank";
  if (device == "cuda" || !memory_option.empty()) return "a GPU";
  const bool vowel =
      std::string_view("ahlr").find(device.front()) != std::string_view::npos;  // as it is spoken
  return (vowel ? "an " : "a ") + device;
}

std::string Machine::memory_in_words() const {
  return format_bytes(memory_bytes) + (memory_option.empty() ? "" : fmt::format(" ({})", memory_option));
}

fsdp::AvailableMemory Machine::memory() const {
  const auto known = [](std::int64_t bytes) { return bytes > 0 ? std::optional(bytes) : std::nullopt; };
  const bool on_cpus = backend == comm::Backend::mpi;
  return {.backend = backend,
          .one_memory = on_cpus,
          .on_device = known(memory_bytes),
          .on_host = known(host_memory_bytes),
          .ranks_on_host = most_ranks_on_a_node(),
          .process_on_device = on_cpus ? kProcessBytes : kContextBytes,
          .process_on_host = kProcessBytes};
}

fsdp::FitQuestion fit_question(const PlanReport& report, const model::Model& model,
                               const fsdp::EngineOptions& options, const fsdp::DeviceMesh& mesh,
                               const device::OperationSizes& sizes) {
  const auto fits = [memory = report.machine.memory(), reduction = options.reduction](
                        const fsdp::ArenaBytes& arena_bytes, const fsdp::DeviceMesh& in_mesh) {
    return memory.holds(arena_bytes, in_mesh, reduction);
  };
  return {model, options, mesh, sizes, report.machine.backend, fits};
}

ConfigError does_not_fit(const PlanReport& report, const fsdp::CompiledModel& compiled,
                         const fsdp::FitQuestion& question) {
  const Machine& machine = report.machine;
  const bool device_is_full = !report.fits_on_device();
  const std::string lack =
      device_is_full
          ? fmt::format("needs {} per rank, but {} has {}", format_bytes(report.needed_bytes),
                        machine.device_in_words(), machine.memory_in_words())
          : fmt::format("needs {} of host memory per node, but a node has {}",
                        format_bytes(report.host_needed_bytes), format_bytes(machine.host_memory_bytes));
  const std::optional<fsdp::Arena> arena =
      report.on_gpu() ? std::optional(device_is_full ? fsdp::Arena::device : fsdp::Arena::host)
                      : std::nullopt;
  return fsdp::does_not_fit(lack, compiled, arena, question);
}

std::vector<UnitReport> report_units(const model::Model& model, const std::vector<fsdp::Unit>& units,
                                     const fsdp::Precision& precision) {
  std::vector<UnitReport> reports;
  for (const auto& unit : units) {
    auto& report = reports.emplace_back();
    report.name = unit.name;
    for (const auto& p : unit.parameters) {
      const auto& parameter = model.parameters()[p.parameter];
      report.parameters.push_back(parameter.name);
      report.elements += parameter.elements();
    }
    report.float32_bytes = report.elements * size_of(DType::float32);
    report.param_bytes = bytes_of(fsdp::gathered_dtype(unit, precision), report.elements);
    report.shard_elements = unit.shard_elements;
    report.padding = unit.flat_elements() - report.elements;
    report.frozen = unit.frozen;
  }
  return reports;
}

ArenaReport PlanReport::total() const {
  ArenaReport sum;
  for (const auto& arena : arenas) {
    sum.kept += arena.kept;
    sum.step += arena.step;
    sum.evaluation += arena.evaluation;
    sum.planned += arena.planned;
  }
  return sum;
}

CategoryReport PlanReport::total(fsdp::Category category) const {
  CategoryReport sum;
  for (const auto& of_arena : categories) sum += of_arena[static_cast<std::size_t>(category)];
  return sum;
}

PlanReport make_report(const model::Model& model, const fsdp::EngineOptions& options,
                       const fsdp::DeviceMesh& mesh, const fsdp::CompiledModel& compiled,
                       const Machine& machine) {
  require(!compiled.step.empty(), "a report is of a training step");
  PlanReport report;
  report.machine = machine;
  report.strategy = options.strategy;
  report.batch = options.batch;
  report.micro_batches = options.micro_batches;
  report.precision = options.precision;
  for (const auto& layer : compiled.specs) {
    if (!layer.fp8_weights.empty())
      report.fp8 = layer.fp8_blocks ? model::Fp8Scales::block : model::Fp8Scales::tensor;
  }
  report.checkpointing = options.checkpointing;
  report.attention_workspace = options.batch.attention_room;
  if (report.on_gpu()) report.logits_workspace = options.batch.logits_bytes;
  report.offloads_residuals = options.offload.residuals;
  report.added = fsdp::added_seconds(model, options, compiled);
  report.shards = mesh.shard_count();
  report.replicas = mesh.replica_count();
  report.groups = fsdp::format_groups(mesh);
  report.mesh = fsdp::describe_mesh(mesh);
  report.purposes = fsdp::bytes_by_purpose(compiled.step);
  for (int a = 0; a < fsdp::kArenas; ++a) {
    report.arenas[a] = {.kept = kept_bytes(report.purposes, static_cast<fsdp::Arena>(a)),
                        .step = compiled.step.arena_bytes[a],
                        .evaluation = compiled.evaluation.arena_bytes[a],
                        .planned = compiled.arena_bytes[a]};
  }
  report.context_bytes = report.on_gpu() ? kContextBytes : 0;
  report.later_bytes = fsdp::loaded_later_bytes(machine.backend);
  report.communicator_bytes = fsdp::communicator_bytes(machine.backend, mesh, options.reduction);
  const fsdp::AvailableMemory memory = machine.memory();
  report.host_needed_bytes = memory.needed_on_host(compiled.arena_bytes);
  report.needed_bytes = memory.needed_on_device(compiled.arena_bytes, mesh, options.reduction);
  report.step_plan = fsdp::format_memory(compiled.step);
  describe_peak(report, compiled);
  report.traffic = traffic_of(compiled.step);
  report.step_actions = static_cast<std::int64_t>(compiled.step.size());
  report.evaluation_actions = static_cast<std::int64_t>(compiled.evaluation.size());
  report.units = report_units(model, compiled.units, options.precision);
  for (const auto& unit : report.units) {
    report.parameters += unit.elements;
    if (!unit.frozen) report.trained_parameters += unit.elements;
  }
  return report;
}

}  // namespace llampi::plan
