// SPDX-License-Identifier: Apache-2.0
#include "train/run_setup.hpp"

#include <utility>

#include "llampi/checkpoint/engine_weights.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/error_source.hpp"
#include "llampi/selfcheck/gpu_check.hpp"
#include "llampi/train/micro_batches.hpp"
#include "llampi/train/open_compute.hpp"
#include "train/engine_config.hpp"
#include "train/same_model.hpp"

namespace llampi::train {
namespace {

constexpr const char* kWeightsKey = "model.weights = ";

}  // namespace

void RunSetup::open_inputs(const std::string& model_text) {
  inputs = train::open_inputs(config, world.size(), model_text);
  state = inputs.fresh;
}

void RunSetup::choose_start() { start = train::choose_start(world, config, texts, inputs, refused, log); }

void RunSetup::check_weights() const {
  if (start.weights.empty()) return;
  comm::agree(world, [&] {
    const auto of_weights =
        with_source(kWeightsKey, start.weights, [&] { return checkpoint::config_of_weights(start.weights); });
    check_same_model(inputs.llama, config.model.config, of_weights, start.weights.string(),
                     "give the model.config that belongs to the weights");
  });
}

void RunSetup::open_compute() { compute = open_compute_of_run(world, config, texts.name_of, log); }

void RunSetup::build_engine() {
  const int micro_batches = micro_batches_of_step(config, world.size());
  fsdp::EngineOptions options;
  comm::agree(world, [&] {
    if (const auto& gpu = compute.gpu_properties; compute.on_gpu()) require_fp8_products(config, gpu);
    options = engine_options(config, *inputs.model, micro_batches, compute.world().backend());
  });
  selfcheck::check_gpus(world, compute,
                        {.dtype = options.precision.compute,
                         .tf32 = config.run.tf32,
                         .model = &inputs.llama,
                         .fp8 = fp8_recipe(config),
                         .lora = lora_config(config)},
                        log);
  compute.gpu_opened_bytes = compute.gpu_bytes_in_use();  // with the kernels that the check has loaded
  decisions = make_decisions({world, compute, inputs, config, start.run_text, log}, options);
  inputs.batch_options.micro_batch = options.batch.sequences;
  engine = std::make_unique<fsdp::Engine>(*inputs.model, compute.device(), *compute.host, compute.world(),
                                          options);
  engine->keep_record(record);
}

void RunSetup::close() {
  engine.reset();
  compute.gpu_world.reset();
  compute.gpu.reset();
}

std::int64_t RunSetup::fill_engine() {
  const auto saved = fill_from_start();
  const bool begins = start.checkpoint.empty();
  if (!begins) state = continue_from(saved, state);
  start.run_text = with_decisions(start.run_text, decisions);
  return begins ? -1 : saved.step;
}

/// Returns what the checkpoint says of the run; nothing of note without one.
checkpoint::TrainingState RunSetup::fill_from_start() {
  if (config.lora.rank > 0) fill_adapters();
  if (!start.checkpoint.empty()) {
    const auto stored = checkpoint::stored_tensors(*engine);
    return checkpoint::load_checkpoint(world, compute.device(), start.checkpoint,
                                       checkpoint::tensor_infos(*engine, stored),
                                       checkpoint::tensor_pieces(*engine, engine->pieces_to_load(), stored),
                                       {config.checkpoint.io, config.run.resume_with_changes, log});
  }
  if (config.lora.rank > 0) return {};
  if (config.model.weights) {
    with_source(kWeightsKey, start.weights, [&] {
      checkpoint::load_weights(world, compute.device(), start.weights, inputs.llama, *engine,
                               config.fsdp.sync_init, {.io = config.checkpoint.io, .log = log});
    });
  } else {
    engine->initialise(config.run.seed);
  }
  return {};
}

/// The base, and the adapters of a run that begins.
void RunSetup::fill_adapters() {
  with_source(kWeightsKey, start.weights, [&] {
    inputs.base_sums = checkpoint::load_base(world, compute.device(), start.weights, inputs.llama, *engine,
                                             config.fsdp.sync_init);
  });
  if (!start.checkpoint.empty()) {
    comm::on_rank_0(world, [&] {
      const auto adapter = checkpoint::read_checkpoint_summary(start.checkpoint).texts.adapter;
      const auto info = checkpoint::parse_adapter(adapter, start.checkpoint.string());
      checkpoint::require_same_base(inputs.base_sums, info, kWeightsKey + start.weights.string(),
                                    start.checkpoint.string());
    });
  } else if (config.lora.weights) {
    with_source("lora.weights = ", start.adapter, [&] {
      checkpoint::load_adapters(world, compute.device(), start.adapter, *lora_config(config), *engine,
                                config.fsdp.sync_init);
    });
  } else {
    engine->initialise_adapters(config.run.seed);
  }
}

data::Loader RunSetup::open_loader() const {
  std::vector<std::int64_t> numbers;
  const auto shape = fsdp::step_shape(engine->options(), engine->mesh());
  for (int m = 0; m < shape.per_rank; ++m)
    numbers.push_back(fsdp::micro_batch_number(shape, engine->mesh(), world.rank(), m));
  return {*inputs.train, inputs.batch_options, *inputs.sampler, std::move(numbers)};
}

checkpoint::CheckpointTexts RunSetup::checkpoint_texts() const {
  const std::string of_data = inputs.train->chat_template();
  return {inputs.llama.json, start.run_text, of_data.empty() ? start.chat_template : of_data,
          adapter_text_of(inputs, config, start.weights.string())};
}

}  // namespace llampi::train
