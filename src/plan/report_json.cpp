// The report for programs.
#include <nlohmann/json.hpp>

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

Json roles_json(const std::vector<fsdp::RoleBytes>& roles) {
  Json list = Json::array();
  for (const auto& row : roles) {
    list.push_back({{"role", fsdp::to_string(row.role)},
                    {"arena", fsdp::to_string(row.arena)},
                    {"kept", row.persistent},
                    {"buffers", row.buffers},
                    {"bytes", row.bytes}});
  }
  return list;
}

Json busiest_json(const PlanReport& report) {
  return {{"action", report.busiest_action},
          {"actions", report.step_actions},
          {"description", report.busiest_description},
          {"transient_bytes", report.busiest_transient},
          {"roles", roles_json(report.busiest_roles)}};
}

Json categories_json(const PlanReport& report) {
  Json json;
  for (int c = 0; c < kCategories; ++c) {
    json[to_string(static_cast<Category>(c))] = {{"kept_bytes", report.categories[c].kept},
                                                 {"busiest_bytes", report.categories[c].busiest}};
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

}  // namespace

std::string to_json(const std::vector<UnitReport>& units) { return units_json(units).dump(); }

std::string to_json(const PlanReport& r) {
  const Json json = {
      {"device", r.machine.device},
      {"ranks", r.machine.ranks},
      {"ranks_per_node", r.machine.ranks_per_node},
      {"nodes", r.machine.nodes()},
      {"threads_per_rank", r.machine.threads},
      {"strategy", fsdp::to_string(r.strategy)},
      {"shard_ranks", r.shards},
      {"replicas", r.replicas},
      {"groups", r.groups},
      {"micro_batch", r.batch.sequences},
      {"seq_len", r.batch.seq_len},
      {"micro_batches", r.micro_batches},
      {"param_dtype", to_string(r.precision.param)},
      {"compute_dtype", to_string(r.precision.compute)},
      {"reduce_dtype", to_string(r.precision.reduce)},
      {"gradient_dtype", to_string(r.precision.gradient_shard)},
      {"master_dtype", to_string(r.precision.master)},
      {"moment_dtype", to_string(r.precision.moment)},
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
      {"arenas", arenas_json(r)},
      {"roles", roles_json(r.roles)},
      {"busiest", busiest_json(r)},
      {"categories", categories_json(r)},
      {"traffic",
       {{"gathered_bytes", r.traffic.gathered},
        {"reduced_bytes", r.traffic.reduced},
        {"replica_reduced_bytes", r.traffic.replica_reduced},
        {"host_to_device_bytes", r.traffic.host_to_device},
        {"device_to_host_bytes", r.traffic.device_to_host}}},
      {"step_actions", r.step_actions},
      {"evaluation_actions", r.evaluation_actions},
      {"units", units_json(r.units)}};
  return json.dump();
}

}  // namespace llampi::plan
