// SPDX-License-Identifier: Apache-2.0
#include "llampi/train/compiled_run.hpp"

#include <algorithm>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/threads.hpp"
#include "llampi/core/error.hpp"
#include "llampi/device/gpu.hpp"
#include "llampi/train/config_rules.hpp"
#include "llampi/train/micro_batches.hpp"
#include "train/engine_config.hpp"
#include "train/inputs.hpp"

namespace llampi::train {

RunShape shape_of(const comm::Topology& topology) {
  RunShape shape;
  shape.ranks = static_cast<int>(topology.node_of_rank.size());
  shape.node_ranks.assign(static_cast<std::size_t>(topology.nodes), 0);
  for (const int node : topology.node_of_rank) ++shape.node_ranks[static_cast<std::size_t>(node)];
  shape.ranks_per_node = std::ranges::max(shape.node_ranks);
  return shape;
}

RunShape resolved(RunShape shape, const Config& config) {
  if (shape.ranks_per_node == 0 || shape.ranks_per_node > shape.ranks) shape.ranks_per_node = shape.ranks;
  if (!shape.node_ranks.empty()) shape.ranks_per_node = std::ranges::max(shape.node_ranks);
  shape.threads =
      comm::threads_per_rank(shape.threads > 0 ? shape.threads : config.run.threads, shape.ranks_per_node);
  return shape;
}

std::vector<int> nodes_of_ranks(const RunShape& shape) {
  std::vector<int> nodes;
  for (std::size_t node = 0; node < shape.node_ranks.size(); ++node)
    nodes.insert(nodes.end(), static_cast<std::size_t>(shape.node_ranks[node]), static_cast<int>(node));
  if (shape.node_ranks.empty()) {
    for (int rank = 0; rank < shape.ranks; ++rank) nodes.push_back(rank / shape.ranks_per_node);
  }
  require(std::ssize(nodes) == shape.ranks, "the ranks of the nodes are not those of the job");
  return nodes;
}

namespace {

fsdp::FitQuestion fit_question(const CompiledRun& run) {
  fsdp::AvailableMemory memory = run.shape.memory;
  memory.backend = run.shape.backend;
  return fsdp::make_fit_question(*run.model, run.options, run.mesh, *run.sizes, memory);
}

fsdp::Undecided undecided_in(const Config& config, const RunShape& shape) {
  return undecided_options(config, shape.backend, {shape.memory.on_device.value_or(0), shape.gpu_major});
}

}  // namespace

Config with_strategy(Config config, fsdp::Strategy strategy) {
  auto& f = config.fsdp;
  f.strategy = strategy;
  f.shard_optimizer_over_replicas = f.shard_optimizer_over_replicas && fsdp::has_replicas(strategy);
  f.all_reduce_stream = f.all_reduce_stream && fsdp::is_hybrid(strategy);
  if (!fsdp::is_hybrid(strategy)) f.shard_group_size.reset();
  return config;
}

CompiledRun compile_run(const Config& config, const RunShape& shape) {
  check_together(config);
  CompiledRun run;
  run.shape = resolved(shape, config);
  run.node_of_rank = nodes_of_ranks(run.shape);
  const int micro_batches = micro_batches_of_step(config, shape.ranks);
  const model::LlamaConfig llama = read_model_config(config);
  run.max_positions = llama.max_position_embeddings;
  run.model = model::make_llama(llama, fp8_recipe(config), lora_config(config));
  run.options = engine_options(config, *run.model, micro_batches, shape.backend);
  if (shape.on_gpu()) {
    require_fp8_products(config, shape.gpu, shape.gpu_major, shape.gpu_minor);
    device::require_gpu_kernels(llama.head_dim, llama.hidden_size, run.options.precision.compute);
  }
  run.mesh = fsdp::make_device_mesh(run.options.strategy, run.node_of_rank, run.options.shard_group_size);
  run.sizes = shape.on_gpu() ? device::make_gpu_sizes() : device::make_cpu_sizes(run.shape.threads);
  run.options = fsdp::decide_what_fits(fit_question(run), undecided_in(config, shape));
  run.compiled = fsdp::compile_model(*run.model, run.options, run.mesh, *run.sizes, shape.backend);
  return run;
}

std::int64_t longest_seq_len(Config config, const RunShape& shape, const CompiledRun& run) {
  fsdp::FitQuestion question = fit_question(run);
  const fsdp::Undecided undecided = undecided_in(config, shape);
  const auto can_fit = [&](std::int64_t seq_len) {
    question.options.batch.seq_len = seq_len;
    return fsdp::can_fit(question, undecided);
  };
  const auto fits = [&](std::int64_t seq_len) {
    config.data.seq_len = seq_len;
    const CompiledRun longer = compile_run(config, shape);
    return fit_question(longer).fits(longer.compiled.arena_bytes, longer.mesh, longer.options);
  };
  const std::int64_t present = config.data.seq_len;
  const std::int64_t longest = fsdp::fitting_seq_len(present, run.max_positions, can_fit);
  // Many micro-batches need more than a few.
  return longest == present || fits(longest) ? longest : fsdp::fitting_seq_len(present, longest - 1, fits);
}

}  // namespace llampi::train
