#include <algorithm>

#include "llampi/fsdp/engine.hpp"

namespace llampi::fsdp {
namespace {

/// Per stage, the module of the block that it belongs to; -1 outside all blocks.
std::vector<int> blocks_of_stages(const model::Model& model, const std::vector<model::StageSpec>& specs) {
  const auto& modules = model.modules();
  std::vector<int> blocks;
  for (const auto& spec : specs) {
    const auto own =
        std::find_if(modules.begin(), modules.end(), [&](const auto& m) { return m.name == spec.module; });
    require(own != modules.end(), "a stage names a module that the model does not have");
    int m = static_cast<int>(own - modules.begin());
    while (m >= 0 && modules[m].type != model.block_type()) m = modules[m].parent;
    blocks.push_back(m);
  }
  return blocks;
}

}  // namespace

CompiledModel compile_model(const model::Model& model, const EngineOptions& options, const RankGroups& groups,
                            const device::OperationSizes& sizes, comm::Backend backend) {
  CompiledModel compiled;
  for (const auto& stage : model.stages()) {
    compiled.specs.push_back(stage->spec(options.batch, options.precision.compute, sizes));
  }
  std::vector<bool> frozen;
  for (const auto& group : options.groups) frozen.push_back(group.frozen);
  compiled.units = wrap(model, compiled.specs, options.wrap, groups.shard_count(), frozen);
  compiled.constants = model.constants(options.batch.positions(), options.precision.compute);

  ScheduleOptions schedule{.micro_batches = options.micro_batches,
                           .input_bytes = 4 * device::HostBatch::elements(options.batch.tokens()),
                           .replicas = groups.replica_count(),
                           .reshard_after_forward = reshards_after_forward(options.strategy),
                           .backward_prefetch = options.backward_prefetch,
                           .forward_prefetch = options.forward_prefetch,
                           .limit_all_gathers = options.limit_all_gathers,
                           .accumulate_unsharded = options.accumulate_unsharded,
                           .precision = options.precision,
                           .offload = options.offload,
                           .checkpointing = options.checkpointing,
                           .blocks = blocks_of_stages(model, compiled.specs)};
  if (options.training) compiled.step = compile(compiled.specs, compiled.units, schedule);
  schedule.forward_only = true;
  schedule.micro_batches = 1;
  compiled.evaluation = compile(compiled.specs, compiled.units, schedule);

  const PlanInput input{.specs = compiled.specs,
                        .units = compiled.units,
                        .constants = compiled.constants,
                        .batch = options.batch,
                        .precision = options.precision,
                        .offload = options.offload,
                        .shared_workspace = sizes.shared_workspace(),
                        .backend = backend,
                        .shards = groups.shard_count(),
                        .replicas = groups.replica_count(),
                        .checkpointing = options.checkpointing,
                        .micro_batches = options.training ? options.micro_batches : 1,
                        .optimizer_state = options.training,
                        .stages_inputs = sizes.stages_inputs(),
                        .snapshot = options.snapshot,
                        .vocabulary = model.vocabulary()};
  if (options.training) compiled.step_plan = place(compiled.step, input);
  compiled.evaluation_plan = place(compiled.evaluation, input);
  for (int a = 0; a < kArenas; ++a) {
    compiled.arena_bytes[a] =
        std::max(compiled.step_plan.arena_bytes[a], compiled.evaluation_plan.arena_bytes[a]);
  }
  return compiled;
}

}  // namespace llampi::fsdp
