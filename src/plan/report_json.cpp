// SPDX-License-Identifier: Apache-2.0
// The report for programs.
#include <nlohmann/json.hpp>

#include "llampi/fsdp/dump.hpp"
#include "llampi/plan/report.hpp"

namespace llampi::plan {
namespace {

using Json = nlohmann::ordered_json;

Json arenas_json(const PlanReport& report) {
  Json json;
  for (int a = 0; a < fsdp::kArenas; ++a) {
    const auto& arena = report.arenas[a];
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

Json peak_json(const PlanReport& report) {
  return {{"action", report.peak_action},
          {"actions", report.step_actions},
          {"description", report.peak_description},
          {"transient_bytes", report.peak_transient},
          {"roles", roles_json(report.peak_purposes)}};
}

Json categories_json(const PlanReport& report) {
  Json json;
  for (int c = 0; c < fsdp::kCategories; ++c) {
    const auto category = static_cast<fsdp::Category>(c);
    const CategoryReport bytes = report.total(category);
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

Json predicted_json(const PlanReport& r) {
  if (!r.speed) return {};
  Json strategies = Json::array(), impossible = Json::array();
  for (const auto& row : r.times) {
    if (!row.impossible.empty()) {
      impossible.push_back({{"strategy", fsdp::to_string(row.strategy)}, {"reason", row.impossible}});
      continue;
    }
    strategies.push_back({{"strategy", fsdp::to_string(row.strategy)},
                          {"fits", row.fits ? Json(*row.fits) : Json()},
                          {"step_seconds", row.time.seconds},
                          {"compute_seconds", row.time.compute_seconds},
                          {"waiting_seconds", row.time.waiting_seconds()},
                          {"tokens_per_second", static_cast<double>(r.tokens()) / row.time.seconds}});
  }
  return {{"flops_per_second", r.speed->costs ? Json() : Json(r.speed->flops_per_second)},
          {"in_node_bytes_per_second", r.speed->network.in_node.bytes_per_second},
          {"between_nodes_bytes_per_second", r.speed->network.between_nodes.bytes_per_second},
          {"strategies", strategies},
          {"impossible", impossible}};
}

Json step_time_json(const PlanReport& r) {
  if (!r.prediction) return {};
  const Prediction& p = *r.prediction;
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

std::string to_json(const std::vector<UnitReport>& units) { return units_json(units).dump(); }

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

Json report_json(const PlanReport& r) {
  return {{"device", r.machine.device},
          {"ranks", r.machine.ranks},
          {"ranks_per_node", r.machine.ranks_per_node},
          {"nodes", r.machine.nodes()},
          {"node_ranks", r.machine.node_ranks.empty() ? Json() : Json(r.machine.node_ranks)},
          {"threads_per_rank", r.machine.threads},
          {"strategy", fsdp::to_string(r.strategy)},
          {"shard_ranks", r.shards},
          {"replicas", r.replicas},
          {"groups", r.groups},
          {"micro_batch", r.batch.sequences},
          {"seq_len", r.batch.seq_len},
          {"micro_batches", r.micro_batches},
          {"global_batch", r.global_batch()},
          {"param_dtype", to_string(r.precision.param)},
          {"frozen_dtype", to_string(r.precision.gathered(true))},
          {"frozen_matrix_dtype",
           to_string(r.precision.int8_base ? DType::int8_blocks : r.precision.gathered(true))},
          {"compute_dtype", to_string(r.precision.compute)},
          {"product_dtype", r.fp8 ? "fp8" : to_string(r.precision.compute)},
          {"fp8_scales", r.fp8 ? nlohmann::json(word_of(*r.fp8)) : nlohmann::json()},
          {"reduce_dtype", to_string(r.precision.reduce)},
          {"gradient_dtype", to_string(r.precision.gradient_shard)},
          {"master_dtype", to_string(r.precision.master)},
          {"moment_dtype", to_string(r.precision.moment)},
          {"checkpointing", fsdp::to_string(r.checkpointing)},
          {"offload_residuals", r.offloads_residuals},
          {"recomputed", r.added.recomputed_part()},
          {"waiting", r.added.waiting_part()},
          {"attention_workspace_bytes", r.attention_workspace},
          {"logits_workspace_bytes", r.logits_workspace},
          {"parameters", r.parameters},
          {"trained_parameters", r.trained_parameters},
          {"planned_bytes", r.total().planned},
          {"process_bytes", kProcessBytes},
          {"context_bytes", r.context_bytes},
          {"loaded_later_bytes", r.later_bytes},
          {"communicator_bytes", r.communicator_bytes},
          {"needed_bytes", r.needed_bytes},
          {"device_memory_bytes", r.knows_memory() ? Json(r.machine.memory_bytes) : Json()},
          {"host_needed_bytes", r.host_needed_bytes},
          {"host_memory_bytes", r.knows_host_memory() ? Json(r.machine.host_memory_bytes) : Json()},
          {"fits", r.knows_memory() ? Json(r.fits()) : Json()},
          {"longest_seq_len", r.longest_seq_len > 0 ? Json(r.longest_seq_len) : Json()},
          {"arenas", arenas_json(r)},
          {"roles", roles_json(r.purposes)},
          {"busiest", peak_json(r)},
          {"categories", categories_json(r)},
          {"traffic",
           {{"gathered_bytes", r.traffic.gathered},
            {"reduced_bytes", r.traffic.reduced},
            {"replica_reduced_bytes", r.traffic.replica_reduced},
            {"replica_gathered_bytes", r.traffic.replica_gathered},
            {"host_to_device_bytes", r.traffic.host_to_device},
            {"device_to_host_bytes", r.traffic.device_to_host}}},
          {"predicted", predicted_json(r)},
          {"step_time", step_time_json(r)},
          {"step_actions", r.step_actions},
          {"evaluation_actions", r.evaluation_actions},
          {"units", units_json(r.units)}};
}

}  // namespace

std::string to_json(const PlanReport& report) { return report_json(report).dump(); }

std::string to_json(const PlanReport& report, const fsdp::CompiledModel& compiled) {
  Json json = report_json(report);
  json["actions"] = Json::array();
  for (const auto& action : compiled.step.actions) json["actions"].push_back(action_json(compiled, action));
  for (std::size_t i = 0; i < report.action_seconds.size(); ++i)
    json["actions"][i]["seconds"] = report.action_seconds[i];
  json["buffers"] = Json::array();
  for (const auto& buffer : compiled.step.buffers) json["buffers"].push_back(buffer_json(buffer));
  return json.dump();
}

}  // namespace llampi::plan
