// SPDX-License-Identifier: Apache-2.0
#include "train/engine_config.hpp"

#include <iterator>
#include <numeric>

#include "llampi/core/error.hpp"
#include "llampi/device/gpu.hpp"

namespace llampi::train {
namespace {

/// What fsdp.sum_order = tree could not keep, though nothing else would tell.
void check_sum_order(const Config& c, Hardware hardware) {
  if (c.fsdp.sum_order == fsdp::SumOrder::any) return;
  if (!c.train.micro_batch) {
    throw_user_error(
        "fsdp.sum_order = tree needs a train.micro_batch that is a number: as many sequences as fit depends on the number "
        "of ranks");
  }
  if (hardware == Hardware::gpu && !c.run.deterministic)
    throw_user_error(
        "fsdp.sum_order = tree requires run.deterministic = true: otherwise no two runs have the same bits");
}

/// What would have no effect, or cannot be combined.
void check_together(const Config& c) {
  if (c.fsdp.offload_step == OffloadStep::host && c.fsdp.cpu_offload == CpuOffload::none) {
    throw_user_error("fsdp.offload_step = host needs fsdp.cpu_offload = optimizer or params");
  }
  if (c.fsdp.nccl_copy_engines && !c.fsdp.nccl_window)
    throw_user_error("fsdp.nccl_copy_engines = true needs fsdp.nccl_window = true");
  if (c.fsdp.all_reduce_stream && !fsdp::is_hybrid(c.fsdp.strategy)) {
    throw_user_error(
        "fsdp.all_reduce_stream = true needs a hybrid strategy, not {}: no other has replicas of shards",
        word_of(c.fsdp.strategy));
  }
  if (c.fsdp.shard_group_size && !fsdp::is_hybrid(c.fsdp.strategy)) {
    throw_user_error("fsdp.shard_group_size = {} needs a hybrid strategy, not {}", *c.fsdp.shard_group_size,
                     word_of(c.fsdp.strategy));
  }
  if (c.fsdp.shard_optimizer_over_replicas) {
    if (!fsdp::has_replicas(c.fsdp.strategy)) {
      throw_user_error(
          "fsdp.shard_optimizer_over_replicas = true needs fsdp.strategy = no_shard or a hybrid strategy: with {} each "
          "rank has a part of the optimizer state already",
          word_of(c.fsdp.strategy));
    }
    if (c.fsdp.cpu_offload == CpuOffload::params) {
      throw_user_error(
          "fsdp.shard_optimizer_over_replicas = true cannot be combined with fsdp.cpu_offload = params: updated parameters are "
          "gathered between devices; use fsdp.cpu_offload = optimizer");
    }
  }
  if (c.run.watchdog_seconds > 0 && c.run.watchdog_seconds < 1) {
    throw_user_error("run.watchdog_seconds = {}: use 0 (off), or at least 1", c.run.watchdog_seconds);
  }
  if (c.fsdp.wrap != fsdp::WrapPolicy::modules && !c.fsdp.wrap_modules.empty()) {
    throw_user_error("fsdp.wrap_modules needs fsdp.wrap = modules, not {}", word_of(c.fsdp.wrap));
  }
  if (c.fsdp.param_dtype == DType::float16 && c.optimizer.master_dtype == DType::bfloat16) {
    throw_user_error(
        "fsdp.param_dtype = float16 cannot be combined with optimizer.master_dtype = bfloat16; use float32 for the "
        "master or bfloat16 for both");
  }
  if (c.optimizer.gradient_dtype != DType::float32 && c.fsdp.reduce_dtype != c.optimizer.gradient_dtype) {
    throw_user_error(
        "optimizer.gradient_dtype = {} needs fsdp.reduce_dtype = {} too: gradients are not stored in a "
        "narrower dtype than they are communicated in",
        to_string(c.optimizer.gradient_dtype), to_string(c.optimizer.gradient_dtype));
  }
}

/// "full 99, none" of a model with fewer blocks.
void check_checkpointing(const Config& c, const model::Model& model) {
  if (!c.activation.checkpointing) return;
  const auto named = std::ssize(c.activation.checkpointing->blocks) - 1;
  const int blocks = model.blocks();
  if (named > blocks)
    throw_user_error(
        "activation.checkpointing = {} is for {} blocks and those that follow, and the model has {}",
        to_string(*c.activation.checkpointing), named, blocks);
}

/// @param undecided sequences that micro-batches divide which are `auto`: if any of these has such tokens, all of them have
void check_fp8_tokens(const Config& c, std::int64_t undecided) {
  const std::int64_t multiple = multiple_of_tokens(c);
  const std::int64_t tokens = c.train.micro_batch.value_or(undecided) * c.data.seq_len;
  if (tokens % multiple == 0) return;
  throw_user_error(
      "{} needs micro-batches of a multiple of {} tokens, not {}; use a data.seq_len that is a multiple of {}, or a {} that is a "
      "multiple of {}",
      c.fsdp.fp8_scales == model::Fp8Scales::block ? "fsdp.fp8_scales = block" : "fsdp.product_dtype = fp8",
      multiple, tokens, multiple,
      c.train.micro_batch ? "train.micro_batch" : "number of sequences per rank (train.global_batch)",
      multiple / std::gcd(multiple, c.data.seq_len));
}

/// Whether deterministic gradients of attention may be cuDNN's.
bool keeps_dp(const Config& c) {
  return c.run.deterministic && c.run.attention != device::GpuAttention::native;
}

}  // namespace

fsdp::Undecided undecided_options(const Config& c, Hardware hardware, const GpuOfRanks& gpu) {
  fsdp::Undecided undecided{.checkpointing = !c.activation.checkpointing,
                            .micro_batch = !c.train.micro_batch};
  if (hardware == Hardware::cpu) return undecided;  // activations are in host memory already
  undecided.offload = !c.activation.offload;
  if (!c.run.attention_workspace && keeps_dp(c) && device::deterministic_attention_keeps_dp(gpu.major))
    undecided.most_attention_room = fsdp::most_attention_room(gpu.memory_bytes);
  // With sums in a tree bits do not depend on the memory there is.
  undecided.logits = !c.run.logits_workspace && c.fsdp.sum_order == fsdp::SumOrder::any;
  return undecided;
}

std::int64_t multiple_of_tokens(const Config& c) {
  return c.fsdp.product_dtype == ProductDtype::fp8 ? model::fp8_multiple(c.fsdp.fp8_scales) : 1;
}

std::optional<model::Fp8Recipe> fp8_recipe(const Config& c) {
  if (c.fsdp.product_dtype != ProductDtype::fp8) return {};
  if (c.fsdp.param_dtype == DType::float16)
    throw_user_error(
        "fsdp.product_dtype = fp8 cannot be combined with fsdp.param_dtype = float16; use bfloat16");
  if (c.fsdp.cpu_offload == CpuOffload::params)
    throw_user_error(
        "fsdp.product_dtype = fp8 cannot be combined with fsdp.cpu_offload = params: shards are cast on the device; use "
        "fsdp.cpu_offload = optimizer");
  check_fp8_tokens(c, c.train.global_batch);  // of a rank: engine_options()
  return model::Fp8Recipe{c.fsdp.fp8_gradient_dtype, c.fsdp.fp8_scales};
}

std::optional<model::LoraConfig> lora_config(const Config& c) {
  if (c.lora.rank == 0) {
    if (c.lora.weights) throw_user_error("lora.weights = {} needs lora.rank", *c.lora.weights);
    if (c.lora.dropout > 0) throw_user_error("lora.dropout = {} needs lora.rank", c.lora.dropout);
    if (c.lora.base_dtype == DType::int8_blocks) throw_user_error("lora.base_dtype = int8 needs lora.rank");
    const decltype(c.lora) defaults;
    if (c.lora.alpha != defaults.alpha) throw_user_error("lora.alpha = {} needs lora.rank", c.lora.alpha);
    if (c.lora.targets != defaults.targets)
      throw_user_error("lora.targets = {} needs lora.rank", c.lora.targets);
    if (c.lora.scaling != defaults.scaling)
      throw_user_error("lora.scaling = {} needs lora.rank", word_of(c.lora.scaling));
    return std::nullopt;
  }
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
                                   Hardware hardware) {
  check_together(c);
  check_sum_order(c, hardware);
  check_fp8_tokens(c, micro_batches);
  check_checkpointing(c, model);
  fsdp::EngineOptions options;
  options.batch = {c.train.micro_batch.value_or(1), c.data.seq_len};
  const bool has_room = hardware == Hardware::gpu && keeps_dp(c);
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
  const bool on_gpu = hardware == Hardware::gpu;
  options.precision.param = c.fsdp.param_dtype.value_or(on_gpu ? DType::bfloat16 : DType::float32);
  if (on_gpu) {
    options.precision.compute = options.precision.param;
    options.graph = c.run.cuda_graph == StepGraph::automatic;
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
