// SPDX-License-Identifier: Apache-2.0
#include "train/engine_config.hpp"

#include <iterator>

#include "llampi/core/error.hpp"
#include "llampi/device/gpu.hpp"
#include "llampi/train/config_rules.hpp"

namespace llampi::train {
namespace {

/// What fsdp.sum_order = tree could not keep, though nothing else would tell.
void check_sum_order(const Config& c, bool on_gpu) {
  if (c.fsdp.sum_order == fsdp::SumOrder::any) return;
  if (on_gpu && !c.run.deterministic)
    throw_user_error(
        "fsdp.sum_order = tree requires run.deterministic = true: otherwise no two runs have the same bits");
}

/// "full 99, none" of a model with fewer blocks.
void check_checkpointing(const Config& c, const model::Model& model) {
  if (!c.activation.checkpointing) return;
  std::vector<fsdp::Checkpointing> levels =
      c.activation.checkpointing->blocks;  // the last one: of all that follow
  while (levels.size() > 1 && levels[levels.size() - 2] == levels.back()) levels.pop_back();
  const auto named = std::ssize(levels) - 1;
  const int blocks = model.blocks();
  if (named > blocks)
    throw_user_error(
        "activation.checkpointing = {} is for {} blocks and those that follow, and the model has {}",
        to_string(*c.activation.checkpointing), named, blocks);
}

/// Whether deterministic gradients of attention may be cuDNN's.
bool keeps_dp(const Config& c) {
  return c.run.deterministic && c.run.attention != device::GpuAttention::native;
}

}  // namespace

fsdp::Undecided undecided_options(const Config& c, comm::Backend backend, const GpuOfRanks& gpu) {
  fsdp::Undecided undecided{.checkpointing = !c.activation.checkpointing,
                            .micro_batch = !c.train.micro_batch};
  if (backend == comm::Backend::mpi) return undecided;  // activations are in host memory already
  undecided.offload = !c.activation.offload;
  if (!c.run.attention_workspace && keeps_dp(c) && device::deterministic_attention_keeps_dp(gpu.major))
    undecided.most_attention_room = fsdp::most_attention_room(gpu.memory_bytes);
  // With sums in a tree bits do not depend on the memory there is.
  undecided.logits = !c.run.logits_workspace && c.fsdp.sum_order == fsdp::SumOrder::any;
  return undecided;
}

std::optional<model::Fp8Recipe> fp8_recipe(const Config& c) {
  if (c.fsdp.product_dtype != ProductDtype::fp8) return {};
  return model::Fp8Recipe{c.fsdp.fp8_gradient_dtype, c.fsdp.fp8_scales};
}

std::optional<model::LoraConfig> lora_config(const Config& c) {
  if (c.lora.rank == 0) return {};
  return model::LoraConfig{.rank = c.lora.rank,
                           .alpha = c.lora.alpha,
                           .dropout = c.lora.dropout,
                           .scaling = c.lora.scaling,
                           .targets = c.lora.targets,
                           .seed = c.run.seed};
}

void require_fp8_products(const Config& config, const std::string& gpu, int major, int minor) {
  if (config.fsdp.product_dtype != ProductDtype::fp8) return;
  if (!device::has_fp8_products(major, minor)) {
    throw_user_error(
        "fsdp.product_dtype = fp8 needs a GPU of compute capability 8.9 or newer (Ada, Hopper, Blackwell), and {} has "
        "{}.{}; use fsdp.product_dtype = auto",
        gpu, major, minor);
  }
  if (config.fsdp.fp8_scales == model::Fp8Scales::block && !device::has_fp8_block_products(major, minor)) {
    throw_user_error(
        "fsdp.fp8_scales = block needs a GPU of compute capability 9.0 (Hopper), and {} has {}.{}; use "
        "fsdp.fp8_scales = tensor",
        gpu, major, minor);
  }
}

void require_fp8_products(const Config& config, const device::GpuProperties& gpu) {
  require_fp8_products(config, gpu.name, gpu.major, gpu.minor);
  if (config.fsdp.product_dtype != ProductDtype::fp8 || config.fsdp.fp8_scales != model::Fp8Scales::block ||
      gpu.fp8_blocks)
    return;
  throw_user_error(
      "fsdp.fp8_scales = block needs cuBLAS 12.9 or newer, and llampi was built with or has found an older one; use "
      "fsdp.fp8_scales = tensor");
}

namespace {

void check_int8_base(const model::Model& model, const fsdp::EngineOptions& options) {
  if (!options.precision.int8_base) return;
  const int bad = fsdp::parameter_without_whole_blocks(model, options);
  if (bad < 0) return;
  const auto& parameter = model.parameters()[static_cast<std::size_t>(bad)];
  throw_user_error(
      "lora.base_dtype = int8 keeps matrices in blocks of {} elements, and {} has {}, which is not a multiple of that; use "
      "lora.base_dtype = bfloat16",
      kInt8BlockElements, parameter.name, parameter.elements());
}

}  // namespace

fsdp::EngineOptions engine_options(const Config& c, const model::Model& model, int micro_batches,
                                   comm::Backend backend) {
  const bool on_gpu = backend == comm::Backend::nccl;
  check_sum_order(c, on_gpu);
  check_fp8_tokens(c, micro_batches);
  check_checkpointing(c, model);
  fsdp::EngineOptions options;
  options.batch = {c.train.micro_batch.value_or(1), c.data.seq_len};
  const bool has_room = on_gpu && keeps_dp(c);
  if (has_room) options.batch.attention_room = c.run.attention_workspace.value_or(0) << 20;
  options.batch.documents = c.data.document_mask;
  if (c.run.logits_workspace) options.batch.logits_bytes = *c.run.logits_workspace << 20;
  options.micro_batches = micro_batches;
  options.strategy = c.fsdp.strategy;
  options.shard_group_size = c.fsdp.shard_group_size.value_or(0);
  options.wrap = {c.fsdp.wrap, c.fsdp.wrap_min_params, c.fsdp.wrap_modules};
  options.shard_optimizer_over_replicas = c.fsdp.shard_optimizer_over_replicas;
  options.sum_order = c.fsdp.sum_order;
  options.reduction = c.fsdp.reduction;
  options.all_reduce_stream = c.fsdp.all_reduce_stream;
  options.accumulate_unsharded = c.fsdp.accumulate == GradientAccumulation::unsharded;
  if (c.activation.checkpointing) options.checkpointing = *c.activation.checkpointing;
  options.precision.param = c.fsdp.param_dtype.value_or(on_gpu ? DType::bfloat16 : DType::float32);
  if (on_gpu) {
    options.precision.compute = options.precision.param;
    // NCCL orders its launches by an event that gathers by copy engines never record, and so no capture may wait for it.
    options.graph = c.run.cuda_graph == StepGraph::automatic && !c.fsdp.nccl_copy_engines;
  }
  if (c.lora.rank > 0) {
    options.precision.int8_base = c.lora.base_dtype == DType::int8_blocks;
    options.precision.frozen = options.precision.int8_base ? DType::bfloat16 : c.lora.base_dtype;
    options.saves_frozen = false;
  }
  options.precision.reduce = c.fsdp.reduce_dtype;
  options.precision.master = c.optimizer.master_dtype;
  options.precision.moment = c.optimizer.moment_dtype;
  options.precision.gradient_shard = c.optimizer.gradient_dtype;
  options.offload = offload_of(c);
  options.snapshot = c.checkpoint.async && c.checkpoint.every > 0;
  options.seed = c.run.seed;
  options.backward_prefetch = c.fsdp.backward_prefetch;
  options.forward_prefetch = c.fsdp.forward_prefetch;
  options.limit_all_gathers = c.fsdp.limit_all_gathers;
  options.adamw = {c.optimizer.beta1, c.optimizer.beta2, c.optimizer.eps};
  options.clip_grad_norm = c.optimizer.clip_grad_norm;
  options.parameter_groups =
      optim::parameter_groups(model.parameters(), {.weight_decay = c.optimizer.weight_decay,
                                                   .no_decay = c.optimizer.no_decay,
                                                   .weight_decays = c.optimizer.weight_decays,
                                                   .lr_factors = c.optimizer.lr_factors,
                                                   .frozen = c.optimizer.frozen});
  check_int8_base(model, options);
  return options;
}

optim::LearningRateSchedule schedule_of(const Config& c, std::int64_t total_steps) {
  return {c.optimizer.schedule, c.optimizer.lr, c.optimizer.min_lr, c.optimizer.warmup_steps, total_steps};
}

bool scales_loss(const Config& c) {
  return c.fsdp.param_dtype == DType::float16 || c.fsdp.reduce_dtype == DType::float16;
}

}  // namespace llampi::train
