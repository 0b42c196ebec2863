// SPDX-License-Identifier: Apache-2.0
// The report as data.
#include "llampi/plan/report.hpp"

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

PeakReport peak_of_step(const fsdp::CompiledModel& compiled) {
  const int peak = fsdp::peak_action(compiled.step).value();
  const fsdp::Action& action = compiled.step.actions[static_cast<std::size_t>(peak)];
  return {.action = peak,
          .description = fsdp::to_string(action, compiled.specs, compiled.units),
          .purposes = fsdp::bytes_alive_at(compiled.step, peak)};
}

MemoryReport memory_of(const fsdp::CompiledModel& compiled) {
  MemoryReport memory;
  memory.purposes = fsdp::bytes_by_purpose(compiled.step);
  for (int a = 0; a < fsdp::kArenas; ++a) {
    memory.arenas[a] = {.kept = kept_bytes(memory.purposes, static_cast<fsdp::Arena>(a)),
                        .step = compiled.step.arena_bytes[a],
                        .evaluation = compiled.evaluation.arena_bytes[a],
                        .planned = compiled.arena_bytes[a]};
  }
  memory.peak = peak_of_step(compiled);
  return memory;
}

FitReport fit_of(const Job& job, const fsdp::CompiledModel& compiled) {
  const fsdp::AvailableMemory memory = job.machine.memory();
  FitReport fit;
  fit.communicator_bytes = fsdp::communicator_bytes(memory.backend, job.mesh, job.options);
  fit.graph_bytes = fsdp::graph_bytes(memory.backend, job.options);
  fit.needed_bytes = memory.needed_on_device(compiled.arena_bytes, job.mesh, job.options);
  fit.host_needed_bytes = memory.needed_on_host(compiled.arena_bytes);
  fit.on_device = memory.device_holds(fit.needed_bytes);
  fit.on_host = memory.host_holds(fit.host_needed_bytes);
  return fit;
}

ModelReport model_of(const model::Model& model, const fsdp::CompiledModel& compiled,
                     const fsdp::Precision& precision) {
  ModelReport report;
  report.units = report_units(model, compiled.units, precision);
  for (const auto& layer : compiled.specs) {
    if (!layer.fp8_weights.empty())
      report.fp8 = layer.fp8_blocks ? model::Fp8Scales::block : model::Fp8Scales::tensor;
  }
  return report;
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
  const bool on_cpus = !on_gpu();
  return {.backend = shape.backend,
          .one_memory = on_cpus,
          .on_device = known(memory_bytes),
          .on_host = known(host_memory_bytes),
          .ranks_on_host = most_ranks_on_a_node(),
          .process_on_device = on_cpus ? kProcessBytes : context_bytes(shape.backend),
          .process_on_host = kProcessBytes};
}

fsdp::FitQuestion fit_question(const Job& job, const model::Model& model,
                               const device::OperationSizes& sizes) {
  return fsdp::make_fit_question(model, job.options, job.mesh, sizes, job.machine.memory());
}

ConfigError does_not_fit(const Machine& machine, const FitReport& fit, const fsdp::CompiledModel& compiled,
                         const fsdp::FitQuestion& question) {
  const std::string lack =
      fit.on_device
          ? fmt::format("needs {} of host memory per node, but a node has {}",
                        format_bytes(fit.host_needed_bytes), format_bytes(machine.host_memory_bytes))
          : fmt::format("needs {} per rank, but {} has {}", format_bytes(fit.needed_bytes),
                        machine.device_in_words(), machine.memory_in_words());
  const std::optional<fsdp::Arena> arena =
      machine.on_gpu() ? std::optional(fit.on_device ? fsdp::Arena::host : fsdp::Arena::device)
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

std::int64_t PeakReport::transient_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& row : purposes) {
    if (!row.persistent) bytes += row.bytes;
  }
  return bytes;
}

ArenaReport MemoryReport::total(std::optional<fsdp::Arena> arena) const {
  if (arena) return arenas[static_cast<std::size_t>(*arena)];
  ArenaReport sum;
  for (const auto& one : arenas) {
    sum.kept += one.kept;
    sum.step += one.step;
    sum.evaluation += one.evaluation;
    sum.planned += one.planned;
  }
  return sum;
}

CategoryReport MemoryReport::total(fsdp::Category category, std::optional<fsdp::Arena> arena) const {
  CategoryReport sum;
  for (const auto& row : peak.purposes) {
    if (row.purpose.category() != category || row.arena != arena.value_or(row.arena)) continue;
    if (row.persistent) sum.kept += row.bytes;
    sum.peak += row.bytes;
  }
  return sum;
}

std::int64_t ModelReport::parameters() const {
  std::int64_t elements = 0;
  for (const auto& unit : units) elements += unit.elements;
  return elements;
}

std::int64_t ModelReport::trained_parameters() const {
  std::int64_t elements = 0;
  for (const auto& unit : units) elements += unit.frozen ? 0 : unit.elements;
  return elements;
}

PlanReport make_report(const model::Model& model, const Job& job, const fsdp::CompiledModel& compiled) {
  require(!compiled.step.empty(), "a report is of a training step");
  return {.job = job,
          .model = model_of(model, compiled, job.options.precision),
          .choices = {.added = fsdp::added_seconds(model, job.options, compiled)},
          .fit = fit_of(job, compiled),
          .memory = memory_of(compiled),
          .traffic = traffic_of(compiled.step),
          .time = {}};
}

}  // namespace llampi::plan
