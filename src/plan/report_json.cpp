// SPDX-License-Identifier: Apache-2.0
// The report for programs.
#include <nlohmann/json.hpp>

#include "llampi/core/json_text.hpp"
#include "llampi/fsdp/dump.hpp"
#include "llampi/plan/report.hpp"

namespace llampi::plan {
namespace {

using Json = nlohmann::ordered_json;

Json arenas_json(const MemoryReport& memory) {
  Json json;
  for (int a = 0; a < fsdp::kArenas; ++a) {
    const auto& arena = memory.arenas[a];
    json[fsdp::to_string(static_cast<fsdp::Arena>(a))] = {{"planned_bytes", arena.planned},
                                                          {"kept_bytes", arena.kept},
                                                          {"step_bytes", arena.step},
                                                          {"evaluation_bytes", arena.evaluation}};
  }
  return json;
}

Json roles_json(const std::vector<fsdp::PurposeBytes>& roles) {
  Json list = Json::array();
  for (const auto& row : roles) {
    list.push_back({{"role", fsdp::to_string(row.purpose)},
                    {"arena", fsdp::to_string(row.arena)},
                    {"kept", row.persistent},
                    {"buffers", row.buffers},
                    {"bytes", row.bytes}});
  }
  return list;
}

Json peak_json(const PeakReport& peak, const fsdp::Program& step) {
  return {{"action", peak.action},
          {"actions", step.size()},
          {"description", peak.description},
          {"transient_bytes", peak.transient_bytes()},
          {"roles", roles_json(peak.purposes)}};
}

Json categories_json(const MemoryReport& memory) {
  Json json;
  for (int c = 0; c < fsdp::kCategories; ++c) {
    const auto category = static_cast<fsdp::Category>(c);
    const CategoryReport bytes = memory.total(category);
    json[fsdp::to_string(category)] = {{"kept_bytes", bytes.kept}, {"busiest_bytes", bytes.peak}};
  }
  return json;
}

Json units_json(const std::vector<UnitReport>& units) {
  Json list = Json::array();
  for (const auto& unit : units) {
    list.push_back({{"name", unit.name},
                    {"parameters", unit.parameters},
                    {"elements", unit.elements},
                    {"float32_bytes", unit.float32_bytes},
                    {"param_dtype_bytes", unit.param_bytes},
                    {"shard_elements", unit.shard_elements},
                    {"padding", unit.padding},
                    {"frozen", unit.frozen}});
  }
  return list;
}

Json traffic_json(const Traffic& traffic) {
  return {{"gathered_bytes", traffic.gathered},
          {"reduced_bytes", traffic.reduced},
          {"replica_reduced_bytes", traffic.replica_reduced},
          {"replica_gathered_bytes", traffic.replica_gathered},
          {"host_to_device_bytes", traffic.host_to_device},
          {"device_to_host_bytes", traffic.device_to_host}};
}

Json predicted_json(const TimeReport& time, std::int64_t tokens) {
  if (!time.speed) return {};
  Json strategies = Json::array(), impossible = Json::array();
  for (const auto& row : time.strategies) {
    if (!row.impossible.empty()) {
      impossible.push_back({{"strategy", fsdp::to_string(row.strategy)}, {"reason", row.impossible}});
      continue;
    }
    strategies.push_back({{"strategy", fsdp::to_string(row.strategy)},
                          {"fits", row.fits ? Json(*row.fits) : Json()},
                          {"step_seconds", row.time.seconds},
                          {"compute_seconds", row.time.compute_seconds},
                          {"waiting_seconds", row.time.waiting_seconds()},
                          {"tokens_per_second", static_cast<double>(tokens) / row.time.seconds}});
  }
  return {{"flops_per_second", time.speed->costs ? Json() : Json(time.speed->flops_per_second)},
          {"in_node_bytes_per_second", time.speed->network.in_node.bytes_per_second},
          {"between_nodes_bytes_per_second", time.speed->network.between_nodes.bytes_per_second},
          {"strategies", strategies},
          {"impossible", impossible}};
}

Json step_time_json(const std::optional<Prediction>& prediction) {
  if (!prediction) return {};
  const Prediction& p = *prediction;
  const auto of_budget = [&](double value) { return p.budget_tokens > 0 ? Json(value) : Json(); };
  return {{"machine", p.machine},
          {"step_seconds", p.time.seconds},
          {"product_seconds", p.parts.products},
          {"attention_seconds", p.parts.attention},
          {"memory_bound_seconds", p.parts.memory},
          {"kernel_seconds", p.parts.kernels},
          {"recomputation_seconds", p.parts.recomputed},
          {"optimizer_seconds", p.parts.optimizer},
          {"host_optimizer_seconds", p.parts.host_optimizer},
          {"slowdown_seconds", p.slowdown_seconds()},
          {"exposed_seconds", p.time.waiting_seconds()},
          {"tokens_per_second", p.tokens_per_second()},
          {"mfu", p.peak_flops > 0 ? Json(p.mfu()) : Json()},
          {"budget_tokens", of_budget(p.budget_tokens)},
          {"budget_days", of_budget(p.budget_seconds() / 86400)},
          {"budget_device_hours", of_budget(p.budget_device_hours())}};
}

}  // namespace

std::string to_json(const std::vector<UnitReport>& units) { return json_text(units_json(units)); }

namespace {

Json action_json(const fsdp::CompiledModel& compiled, const fsdp::Action& action) {
  Json json = {{"op", fsdp::to_string(action.op)}, {"stream", action.stream.name()}, {"waits", action.waits}};
  if (action.layer >= 0) {
    json["layer"] = action.layer;
    json["layer_name"] = fsdp::name_of(compiled.specs[static_cast<std::size_t>(action.layer)]);
  }
  if (action.unit >= 0) {
    json["unit"] = action.unit;
    json["unit_name"] = compiled.units[static_cast<std::size_t>(action.unit)].name;
  }
  if (action.micro_batch >= 0) json["micro_batch"] = action.micro_batch;
  if (action.pass) json["pass"] = *action.pass == fsdp::Pass::forward ? "forward" : "backward";
  if (action.payload != fsdp::CopyPayload::none) json["payload"] = fsdp::to_string(action.payload);
  if (action.ranks != fsdp::Ranks::self) json["ranks"] = fsdp::to_string(action.ranks);
  if (action.bytes > 0) json["bytes"] = action.bytes;
  json["operands"] = Json::array();
  for (const auto& line : fsdp::operand_lines(compiled.step, action)) {
    json["operands"].push_back({{"buffer", static_cast<int>(line.buffer)},
                                {"slot", fsdp::to_string(line.slot)},
                                {"access", fsdp::to_string(line.access)},
                                {"bytes", line.bytes}});
  }
  return json;
}

Json buffer_json(const fsdp::Buffer& buffer) {
  Json live = Json::array();
  for (const auto& range : buffer.live) live.push_back({range.first, range.last});
  return {{"purpose", fsdp::to_string(buffer.purpose)},
          {"name", buffer.name},
          {"arena", fsdp::to_string(buffer.arena)},
          {"dtype", to_string(buffer.dtype)},
          {"rows", buffer.rows},
          {"cols", buffer.cols},
          {"bytes", buffer.bytes},
          {"kept", buffer.persistent},
          {"offset", buffer.offset},
          {"live", live}};
}

Json precision_json(const fsdp::Precision& p, std::optional<model::Fp8Scales> fp8) {
  return {{"param_dtype", to_string(p.param)},
          {"frozen_dtype", to_string(p.gathered(true))},
          {"frozen_matrix_dtype", to_string(p.int8_base ? DType::int8_blocks : p.gathered(true))},
          {"compute_dtype", to_string(p.compute)},
          {"product_dtype", fp8 ? "fp8" : to_string(p.compute)},
          {"fp8_scales", fp8 ? Json(word_of(*fp8)) : Json()},
          {"reduce_dtype", to_string(p.reduce)},
          {"gradient_dtype", to_string(p.gradient_shard)},
          {"master_dtype", to_string(p.master)},
          {"moment_dtype", to_string(p.moment)}};
}

Json job_json(const Job& job) {
  const Machine& machine = job.machine;
  return {{"device", machine.device},
          {"ranks", machine.shape.ranks},
          {"ranks_per_node", machine.shape.ranks_per_node},
          {"nodes", machine.nodes()},
          {"node_ranks", machine.shape.node_ranks.empty() ? Json() : Json(machine.shape.node_ranks)},
          {"threads_per_rank", machine.shape.threads},
          {"strategy", fsdp::to_string(job.options.strategy)},
          {"shard_ranks", job.mesh.shard_count()},
          {"replicas", job.mesh.replica_count()},
          {"groups", fsdp::format_groups(job.mesh)},
          {"micro_batch", job.options.batch.sequences},
          {"seq_len", job.options.batch.seq_len},
          {"micro_batches", job.options.micro_batches},
          {"global_batch", job.global_batch()}};
}

Json choices_json(const Job& job, const ChoicesReport& choices) {
  return {{"checkpointing", fsdp::to_string(job.options.checkpointing)},
          {"offload_residuals", job.options.offload.residuals},
          {"recomputed", choices.added.recomputed_part()},
          {"waiting", choices.added.waiting_part()},
          {"attention_workspace_bytes", job.options.batch.attention_room},
          {"attention_lacks_workspace", choices.attention_lacks_workspace},
          {"logits_workspace_bytes", job.logits_workspace()}};
}

Json fit_json(const Machine& machine, const FitReport& fit) {
  return {{"process_bytes", kProcessBytes},
          {"context_bytes", context_bytes(machine.shape.backend)},
          {"loaded_later_bytes", fsdp::loaded_later_bytes(machine.shape.backend)},
          {"graph_bytes", fit.graph_bytes},
          {"communicator_bytes", fit.communicator_bytes},
          {"needed_bytes", fit.needed_bytes},
          {"device_memory_bytes", machine.knows_memory() ? Json(machine.memory_bytes) : Json()},
          {"host_needed_bytes", fit.host_needed_bytes},
          {"host_memory_bytes", machine.knows_host_memory() ? Json(machine.host_memory_bytes) : Json()},
          {"fits", machine.knows_memory() ? Json(fit.fits()) : Json()},
          {"fits_on_device", machine.knows_memory() ? Json(fit.on_device) : Json()},
          {"fits_on_host", machine.knows_host_memory() ? Json(fit.on_host) : Json()},
          {"max_positions", fit.max_positions},
          {"longest_seq_len", fit.longest_seq_len > 0 ? Json(fit.longest_seq_len) : Json()}};
}

Json report_json(const PlanReport& r, const fsdp::CompiledModel& compiled) {
  Json json = job_json(r.job);
  json.update(precision_json(r.job.options.precision, r.model.fp8));
  json.update(choices_json(r.job, r.choices));
  json["parameters"] = r.model.parameters();
  json["trained_parameters"] = r.model.trained_parameters();
  json["planned_bytes"] = r.memory.total().planned;
  json.update(fit_json(r.job.machine, r.fit));
  json["arenas"] = arenas_json(r.memory);
  json["roles"] = roles_json(r.memory.purposes);
  json["busiest"] = peak_json(r.memory.peak, compiled.step);
  json["categories"] = categories_json(r.memory);
  json["traffic"] = traffic_json(r.traffic);
  json["predicted"] = predicted_json(r.time, r.job.tokens());
  json["step_time"] = step_time_json(r.time.prediction);
  json["step_actions"] = compiled.step.size();
  json["evaluation_actions"] = compiled.evaluation.size();
  json["units"] = units_json(r.model.units);
  return json;
}

}  // namespace

std::string to_json(const PlanReport& report, const fsdp::CompiledModel& compiled) {
  return json_text(report_json(report, compiled));
}

std::string to_json_with_actions(const PlanReport& report, const fsdp::CompiledModel& compiled) {
  Json json = report_json(report, compiled);
  json["actions"] = Json::array();
  for (const auto& action : compiled.step.actions) json["actions"].push_back(action_json(compiled, action));
  const auto& seconds = report.time.action_seconds;
  for (std::size_t i = 0; i < seconds.size(); ++i) json["actions"][i]["seconds"] = seconds[i];
  json["buffers"] = Json::array();
  for (const auto& buffer : compiled.step.buffers) json["buffers"].push_back(buffer_json(buffer));
  return json_text(json);
}

}  // namespace llampi::plan
