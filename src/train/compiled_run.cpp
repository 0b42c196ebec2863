// SPDX-License-Identifier: Apache-2.0
#include "llampi/train/compiled_run.hpp"

#include <algorithm>

#include "llampi/comm/threads.hpp"
#include "llampi/device/gpu.hpp"
#include "llampi/infer/session.hpp"
#include "llampi/plan/report.hpp"
#include "train/engine_config.hpp"
#include "train/inputs.hpp"

namespace llampi::train {

Config with_strategy(Config config, fsdp::Strategy strategy) {
  auto& f = config.fsdp;
  f.strategy = strategy;
  f.shard_optimizer_over_replicas = f.shard_optimizer_over_replicas && fsdp::has_replicas(strategy);
  f.all_reduce_stream = f.all_reduce_stream && fsdp::is_hybrid(strategy);
  if (!fsdp::is_hybrid(strategy)) f.shard_group_size.reset();
  return config;
}

CompiledRun compile_run(const Config& config, const RunShape& shape) {
  CompiledRun run;
  run.shape = shape;
  if (shape.ranks_per_node == 0 || shape.ranks_per_node > shape.ranks) run.shape.ranks_per_node = shape.ranks;
  run.shape.threads = comm::threads_per_rank(shape.threads > 0 ? shape.threads : config.run.threads,
                                             run.shape.ranks_per_node);

  const int micro_batches = micro_batches_of_step(config, shape.ranks);
  const model::LlamaConfig llama = read_model_config(config);
  run.max_positions = llama.max_position_embeddings;
  run.model = model::make_llama(llama, fp8_recipe(config));
  if (shape.hardware == Hardware::gpu)
    require_fp8_products(config, shape.gpu, shape.gpu_major, shape.gpu_minor);
  run.options = engine_options(config, *run.model, micro_batches, shape.hardware);
  std::vector<int> node_of_rank(shape.ranks);
  for (int rank = 0; rank < shape.ranks; ++rank) node_of_rank[rank] = rank / run.shape.ranks_per_node;
  run.groups = fsdp::make_groups(run.options.strategy, node_of_rank, run.options.shard_group_size);
  run.sizes =
      shape.hardware == Hardware::gpu ? device::make_gpu_sizes() : device::make_cpu_sizes(run.shape.threads);
  const auto backend = shape.hardware == Hardware::gpu ? comm::Backend::nccl : comm::Backend::mpi;
  if (decides_by_memory(config, shape.hardware)) {
    const auto fits = [&](const auto& arena_bytes, const fsdp::DeviceMesh& groups) {
      const std::int64_t on_host = run.shape.ranks_per_node * (arena_bytes[1] + plan::kProcessBytes);
      return (shape.memory_bytes == 0 || plan::needed_bytes(backend, arena_bytes, groups,
                                                            run.options.reduction) <= shape.memory_bytes) &&
             (shape.host_memory_bytes == 0 || on_host <= shape.host_memory_bytes);
    };
    const fsdp::FitQuestion question{.model = *run.model,
                                     .options = run.options,
                                     .groups = run.groups,
                                     .sizes = *run.sizes,
                                     .backend = backend,
                                     .fits = fits};
    decide_by_memory(run.options, question, config, shape.hardware, {shape.memory_bytes, shape.gpu_major});
  }
  run.compiled = fsdp::compile_model(*run.model, run.options, run.groups, *run.sizes, backend);
  return run;
}

}  // namespace llampi::train
