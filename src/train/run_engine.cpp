// SPDX-License-Identifier: Apache-2.0
#include "train/run_engine.hpp"

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/error_source.hpp"
#include "llampi/infer/engine_weights.hpp"
#include "llampi/selfcheck/gpu_check.hpp"
#include "train/engine_config.hpp"

namespace llampi::train {
namespace {

constexpr const char* kWeightsKey = "model.weights = ";

}  // namespace

model::LlamaConfig config_of_start(const Start& start) {
  return with_source(kWeightsKey, start.weights, [&] { return infer::config_of_weights(start.weights); });
}

RunEngine build_engine(comm::World& world, comm::Compute& compute, Inputs& inputs, const Config& config,
                       const std::string& run_text, const Log& log) {
  const int micro_batches = micro_batches_of_step(config, world.size());
  fsdp::EngineOptions options;
  comm::agree(world, [&] {
    if (const auto& gpu = compute.gpu_properties; compute.on_gpu()) require_fp8_products(config, gpu);
    options = engine_options(config, *inputs.model, micro_batches,
                             compute.on_gpu() ? Hardware::gpu : Hardware::cpu);
  });
  selfcheck::check_gpus(world, compute,
                        {.dtype = options.precision.compute,
                         .tf32 = config.run.tf32,
                         .model = &inputs.llama,
                         .fp8 = fp8_recipe(config),
                         .lora = lora_config(config)},
                        log);
  Decisions decisions = make_decisions({world, compute, inputs, config, run_text, log}, options);
  inputs.batch_options.micro_batch = options.batch.sequences;
  return {std::make_unique<fsdp::Engine>(*inputs.model, compute.device(), *compute.host, compute.world(),
                                         options),
          std::move(decisions)};
}

namespace {

/// The base, and the adapters of a run that begins.
void fill_adapters(comm::World& world, device::Device& device, fsdp::Engine& engine, const Start& start,
                   Inputs& inputs, const Config& config) {
  with_source(kWeightsKey, start.weights, [&] {
    inputs.base_sums =
        infer::load_base(world, device, start.weights, inputs.llama, engine, config.fsdp.sync_init);
  });
  if (!start.checkpoint.empty()) {
    comm::on_rank_0(world, [&] {
      const auto adapter = checkpoint::read_checkpoint_summary(start.checkpoint).texts.adapter;
      const auto info = checkpoint::parse_adapter(adapter, start.checkpoint.string());
      checkpoint::require_same_base(inputs.base_sums, info.base_sums, kWeightsKey + start.weights.string(),
                                    start.checkpoint.string());
    });
  } else if (config.lora.weights) {
    with_source("lora.weights = ", start.adapter, [&] {
      infer::load_adapters(world, device, start.adapter, *lora_config(config), engine, config.fsdp.sync_init);
    });
  } else {
    engine.initialise_adapters(config.run.seed);
  }
}

}  // namespace

checkpoint::TrainingState fill_from_start(comm::World& world, device::Device& device, fsdp::Engine& engine,
                                          const Start& start, Inputs& inputs, const Config& config,
                                          const Log& log) {
  if (config.lora.rank > 0) fill_adapters(world, device, engine, start, inputs, config);
  if (!start.checkpoint.empty()) {
    return checkpoint::load_checkpoint(
        world, device, start.checkpoint, infer::tensor_infos(engine, infer::stored_tensors(engine)),
        infer::tensor_pieces(engine, engine.pieces_to_load(), infer::stored_tensors(engine)),
        {config.checkpoint.io, config.run.resume_with_changes, log});
  }
  if (config.lora.rank > 0) return {};
  if (config.model.weights) {
    with_source(kWeightsKey, start.weights, [&] {
      infer::load_weights(world, device, start.weights, inputs.llama, engine, config.fsdp.sync_init,
                          {.io = config.checkpoint.io, .log = log});
    });
  } else {
    engine.initialise(config.run.seed);
  }
  return {};
}

}  // namespace llampi::train
