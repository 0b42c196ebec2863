// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/compiled_model.hpp"

#include <algorithm>
#include <map>

#include "fsdp/program/builder.hpp"
#include "llampi/fsdp/placement.hpp"

namespace llampi::fsdp {
namespace {

/// Per layer, the number of the block that it belongs to; -1 outside all blocks.
std::vector<int> blocks_of_layers(const model::Model& model, const std::vector<model::LayerSpec>& specs) {
  const auto& modules = model.modules();
  std::map<int, int> numbers;  // by module
  std::vector<int> blocks;
  for (const auto& spec : specs) {
    const auto own =
        std::find_if(modules.begin(), modules.end(), [&](const auto& m) { return m.name == spec.module; });
    require(own != modules.end(), "a layer names a module that the model does not have");
    int m = static_cast<int>(own - modules.begin());
    while (m >= 0 && modules[m].type != model.block_type()) m = modules[m].parent;
    blocks.push_back(m < 0 ? -1 : numbers.try_emplace(m, static_cast<int>(numbers.size())).first->second);
  }
  return blocks;
}

/// Nothing would write its gradient.
void require_used(const model::Model& model, const std::vector<model::LayerSpec>& specs,
                  const std::vector<bool>& frozen) {
  std::vector<bool> used(model.parameters().size());
  for (const auto& spec : specs)
    for (const auto& use : spec.parameters) used[use.parameter] = true;
  for (std::size_t p = 0; p < used.size(); ++p) {
    if (used[p] || (p < frozen.size() && frozen[p])) continue;
    throw_user_error("no layer of the model uses its parameter {}, which is trained; freeze it or remove it",
                     model.parameters()[p].name);
  }
}

std::vector<bool> frozen_parameters(const EngineOptions& options) {
  std::vector<bool> frozen;
  for (const auto& group : options.parameter_groups) frozen.push_back(group.frozen);
  return frozen;
}

}  // namespace

StepShape step_shape(const EngineOptions& options, const DeviceMesh& mesh) {
  return {.per_rank = options.micro_batches,
          .shards = mesh.shard_count(),
          .replicas = mesh.replica_count(),
          .unsharded = options.accumulate_unsharded,
          .order = options.sum_order,
          .sums_follow_placement = mesh.sums_follow_placement,
          .nodes = mesh.nodes};
}

int parameter_without_whole_blocks(const model::Model& model, const EngineOptions& options) {
  const auto kept = kept_in_int8(model, frozen_parameters(options));
  for (std::size_t p = 0; p < kept.size(); ++p) {
    if (kept[p] && model.parameters()[p].elements() % kInt8BlockElements != 0) return static_cast<int>(p);
  }
  return -1;
}

CompiledModel compile_model(const model::Model& model, const EngineOptions& options, const DeviceMesh& mesh,
                            const device::OperationSizes& sizes, comm::Backend backend) {
  check_sum_order(step_shape(options, mesh), options.precision, backend, options.reduction);
  CompiledModel compiled;
  for (const auto& layer : model.layers()) {
    compiled.specs.push_back(layer->spec(options.batch, options.precision.compute, sizes));
  }
  if (options.training) require_used(model, compiled.specs, frozen_parameters(options));
  const bool divides_state = options.training && options.shard_optimizer_over_replicas;
  require(!divides_state || !options.offload.params, "replicas gather updated shards on the device");
  require(!options.precision.int8_base || !options.saves_frozen, "what is kept in 8 bits is not saved");
  compiled.units = wrap(model, compiled.specs, options.wrap, mesh.shard_count(),
                        {.frozen = frozen_parameters(options),
                         .int8_base = options.precision.int8_base,
                         .state_parts = divides_state ? mesh.replica_count() : 1});
  compiled.constants = model.constants(options.batch.positions(), options.precision.compute);

  ProgramSpec spec{.parameters = model.parameters(),
                   .specs = compiled.specs,
                   .units = compiled.units,
                   .constants = compiled.constants,
                   .options = options,
                   .vocabulary = model.vocabulary(),
                   .reshard_after_forward = reshards_after_forward(options.strategy),
                   .blocks = blocks_of_layers(model, compiled.specs),
                   .shards = mesh.shard_count(),
                   .replicas = mesh.replica_count(),
                   .backend = backend,
                   .input_buffers = options.training ? options.micro_batches : 1,
                   .optimizer_state = options.training,
                   .shared_workspace = sizes.shared_workspace(),
                   .stages_inputs = sizes.stages_inputs()};
  if (options.training) {
    compiled.step = build(spec);
    place(compiled.step);
  }
  spec.forward_only = true;
  spec.options.micro_batches = 1;
  compiled.evaluation = build(spec);
  place(compiled.evaluation);
  for (int a = 0; a < kArenas; ++a) {
    compiled.arena_bytes[a] = std::max(compiled.step.arena_bytes[a], compiled.evaluation.arena_bytes[a]);
  }
  return compiled;
}

}  // namespace llampi::fsdp
