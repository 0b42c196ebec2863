// The report as data.
#include "llampi/plan/report.hpp"

#include "llampi/core/text.hpp"
#include "llampi/fsdp/fit.hpp"

namespace llampi::plan {
namespace {

Traffic traffic_of(const std::vector<fsdp::Action>& actions) {
  Traffic traffic;
  for (const auto& action : actions) {
    switch (action.op) {
      case fsdp::Op::unshard:
        traffic.gathered += action.bytes;
        break;
      case fsdp::Op::reduce:
        traffic.reduced += action.bytes;
        break;
      case fsdp::Op::replica_reduce:
        traffic.replica_reduced += action.bytes;
        break;
      case fsdp::Op::copy_in:
        traffic.host_to_device += action.bytes;
        break;
      case fsdp::Op::copy_out:
        traffic.device_to_host += action.bytes;
        break;
      default:
        break;  // moves nothing between ranks or memories
    }
  }
  return traffic;
}

std::int64_t kept_bytes(const std::vector<fsdp::RoleBytes>& roles, fsdp::Arena arena) {
  std::int64_t bytes = 0;
  for (const auto& row : roles) {
    if (row.persistent && row.arena == arena) bytes += row.bytes;
  }
  return bytes;
}

std::array<CategoryReport, kCategories> categories_of(const std::vector<fsdp::RoleBytes>& busiest) {
  std::array<CategoryReport, kCategories> categories{};
  for (const auto& row : busiest) {
    auto& category = categories[static_cast<std::size_t>(category_of(row.role))];
    category.busiest += row.bytes;
    if (row.persistent) category.kept += row.bytes;
  }
  return categories;
}

void describe_busiest(PlanReport& report, const fsdp::CompiledModel& compiled) {
  report.busiest_action = fsdp::busiest_action(compiled.step_plan, compiled.step.size()).value();
  fsdp::Action action = compiled.step[report.busiest_action];
  action.waits.clear();  // numbers that say nothing here
  report.busiest_description = fsdp::to_string(action, compiled.specs, compiled.units);
  report.busiest_roles = fsdp::bytes_alive_at(compiled.step_plan, report.busiest_action);
  for (const auto& row : report.busiest_roles) {
    if (!row.persistent) report.busiest_transient += row.bytes;
  }
  report.categories = categories_of(report.busiest_roles);
}

}  // namespace

std::string Machine::device_in_words() const {
  if (device == "cpu") return "a rank";
  if (device == "cuda") return "a GPU";
  const bool vowel =
      std::string_view("ahlr").find(device.front()) != std::string_view::npos;  // as it is spoken
  return (vowel ? "an " : "a ") + device;
}

const char* to_string(Category category) {
  constexpr std::array kNames = {"parameters", "gradients", "optimizer", "activations", "other"};
  return kNames.at(static_cast<std::size_t>(category));
}

Category category_of(fsdp::Role role) {
  switch (role) {
    case fsdp::Role::parameter_shard:
    case fsdp::Role::gathered:
    case fsdp::Role::widened:
    case fsdp::Role::host_shard:
      return Category::parameters;
    case fsdp::Role::travelling_gradient:
    case fsdp::Role::whole_gradient:
    case fsdp::Role::sharded_gradient:
    case fsdp::Role::host_gradient:
      return Category::gradients;
    case fsdp::Role::master:
    case fsdp::Role::exp_avg:
    case fsdp::Role::exp_avg_sq:
    case fsdp::Role::staged:
      return Category::optimizer;
    case fsdp::Role::activation:
    case fsdp::Role::residual_gradient:
    case fsdp::Role::saved:
      return Category::activations;
    case fsdp::Role::constant:
    case fsdp::Role::kept:
    case fsdp::Role::step_scalars:
    case fsdp::Role::norm_scalars:
    case fsdp::Role::shared_workspace:
    case fsdp::Role::inputs:
    case fsdp::Role::logits:
    case fsdp::Role::forward_scratch:
    case fsdp::Role::backward_scratch:
    case fsdp::Role::collective_workspace:
    case fsdp::Role::host_scalars:
    case fsdp::Role::host_inputs:
    case fsdp::Role::snapshot:
      return Category::other;
  }
  throw Error("internal error: a role without a category");
}

std::int64_t needed_bytes(comm::Backend backend, const std::array<std::int64_t, fsdp::kArenas>& arena_bytes,
                          const fsdp::RankGroups& groups) {
  const auto [on_device, on_host] = arena_bytes;
  if (backend == comm::Backend::mpi) return on_device + on_host + kProcessBytes;
  return on_device + kContextBytes + fsdp::loaded_later_bytes(backend) +
         fsdp::communicator_bytes(backend, groups);
}

std::int64_t host_needed_bytes(const Machine& machine,
                               const std::array<std::int64_t, fsdp::kArenas>& arena_bytes) {
  if (machine.backend == comm::Backend::mpi) return 0;
  return machine.most_ranks_on_a_node() * (arena_bytes[static_cast<int>(fsdp::Arena::host)] + kProcessBytes);
}

std::string does_not_fit(const PlanReport& report, const model::Model& model,
                         const fsdp::EngineOptions& options, const fsdp::RankGroups& groups,
                         const fsdp::CompiledModel& compiled, const device::OperationSizes& sizes) {
  const Machine& machine = report.machine;
  const auto fits = [&](const std::array<std::int64_t, fsdp::kArenas>& arena_bytes,
                        const fsdp::RankGroups& in_groups) {
    return needed_bytes(machine.backend, arena_bytes, in_groups) <= machine.memory_bytes &&
           (!report.knows_host_memory() ||
            host_needed_bytes(machine, arena_bytes) <= machine.host_memory_bytes);
  };
  const bool device_is_full = !report.fits_on_device();
  const std::string lack =
      device_is_full
          ? fmt::format("needs {} per rank, but {} has {}", format_bytes(report.needed_bytes),
                        machine.device_in_words(), format_bytes(machine.memory_bytes))
          : fmt::format("needs {} of host memory per node, but a node has {}",
                        format_bytes(report.host_needed_bytes), format_bytes(machine.host_memory_bytes));
  const std::optional<fsdp::Arena> arena =
      report.on_gpu() ? std::optional(device_is_full ? fsdp::Arena::device : fsdp::Arena::host)
                      : std::nullopt;
  return fmt::format("{}; largest items: {}; {}", lack, fsdp::largest_items(compiled, arena),
                     fsdp::advice_to_fit({model, options, groups, sizes, machine.backend, fits}));
}

std::vector<UnitReport> report_units(const model::Model& model, const std::vector<fsdp::Unit>& units,
                                     DType param_dtype) {
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
    report.param_bytes = report.elements * size_of(param_dtype);
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

PlanReport make_report(const model::Model& model, const fsdp::EngineOptions& options,
                       const fsdp::RankGroups& groups, const fsdp::CompiledModel& compiled,
                       const Machine& machine) {
  require(!compiled.step.empty(), "a report is of a training step");
  PlanReport report;
  report.machine = machine;
  report.strategy = options.strategy;
  report.batch = options.batch;
  report.micro_batches = options.micro_batches;
  report.precision = options.precision;
  report.shards = groups.shard_count();
  report.replicas = groups.replica_count();
  report.groups = fsdp::format_groups(groups);
  report.roles = fsdp::bytes_by_role(compiled.step_plan);
  for (int a = 0; a < fsdp::kArenas; ++a) {
    report.arenas[a] = {.kept = kept_bytes(report.roles, static_cast<fsdp::Arena>(a)),
                        .step = compiled.step_plan.arena_bytes[a],
                        .evaluation = compiled.evaluation_plan.arena_bytes[a],
                        .planned = compiled.arena_bytes[a]};
  }
  report.context_bytes = report.on_gpu() ? kContextBytes : 0;
  report.later_bytes = fsdp::loaded_later_bytes(machine.backend);
  report.communicator_bytes = fsdp::communicator_bytes(machine.backend, groups);
  report.host_needed_bytes = host_needed_bytes(machine, compiled.arena_bytes);
  report.needed_bytes = needed_bytes(machine.backend, compiled.arena_bytes, groups);
  report.step_plan = fsdp::format_plan(compiled.step_plan);
  describe_busiest(report, compiled);
  report.traffic = traffic_of(compiled.step);
  report.step_actions = static_cast<std::int64_t>(compiled.step.size());
  report.evaluation_actions = static_cast<std::int64_t>(compiled.evaluation.size());
  report.units = report_units(model, compiled.units, options.precision.param);
  for (const auto& unit : report.units) {
    report.parameters += unit.elements;
    if (!unit.frozen) report.trained_parameters += unit.elements;
  }
  return report;
}

}  // namespace llampi::plan
