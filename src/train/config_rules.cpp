// SPDX-License-Identifier: Apache-2.0
#include "llampi/train/config_rules.hpp"

#include <numeric>

#include "llampi/core/error.hpp"
#include "llampi/model/fp8_recipe.hpp"

namespace llampi::train {
namespace {

void check_sharding(const Config& c) {
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
  if (c.fsdp.wrap != fsdp::WrapPolicy::modules && !c.fsdp.wrap_modules.empty()) {
    throw_user_error("fsdp.wrap_modules needs fsdp.wrap = modules, not {}", word_of(c.fsdp.wrap));
  }
  if (c.fsdp.sum_order == fsdp::SumOrder::tree && !c.train.micro_batch) {
    throw_user_error(
        "fsdp.sum_order = tree needs a train.micro_batch that is a number: as many sequences as fit depends on the number "
        "of ranks");
  }
}

void check_dtypes(const Config& c) {
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

void check_fp8(const Config& c) {
  if (c.fsdp.product_dtype != ProductDtype::fp8) return;
  if (c.fsdp.param_dtype == DType::float16)
    throw_user_error(
        "fsdp.product_dtype = fp8 cannot be combined with fsdp.param_dtype = float16; use bfloat16");
  if (c.fsdp.cpu_offload == CpuOffload::params)
    throw_user_error(
        "fsdp.product_dtype = fp8 cannot be combined with fsdp.cpu_offload = params: shards are cast on the device; use "
        "fsdp.cpu_offload = optimizer");
  check_fp8_tokens(c, c.train.global_batch);
}

/// What only adapters have.
void check_lora(const Config& c) {
  if (c.lora.rank > 0) return;
  if (c.lora.weights) throw_user_error("lora.weights = {} needs lora.rank", *c.lora.weights);
  if (c.lora.dropout > 0) throw_user_error("lora.dropout = {} needs lora.rank", c.lora.dropout);
  if (c.lora.base_dtype == DType::int8_blocks) throw_user_error("lora.base_dtype = int8 needs lora.rank");
  const decltype(c.lora) defaults;
  if (c.lora.alpha != defaults.alpha) throw_user_error("lora.alpha = {} needs lora.rank", c.lora.alpha);
  if (c.lora.targets != defaults.targets)
    throw_user_error("lora.targets = {} needs lora.rank", c.lora.targets);
  if (c.lora.scaling != defaults.scaling)
    throw_user_error("lora.scaling = {} needs lora.rank", word_of(c.lora.scaling));
}

}  // namespace

void check_run(const Config& c) {
  if (c.train.steps != 0 && c.train.epochs != 0) {
    throw_user_error("train.steps = {} and train.epochs = {} are both given; set one of them to 0",
                     c.train.steps, c.train.epochs);
  }
  if (constexpr double kMostEpochs = 1e9; c.train.epochs > kMostEpochs) {
    throw_user_error("train.epochs = {:g} is more than any run takes; use at most {:g}", c.train.epochs,
                     kMostEpochs);
  }
  if (c.train.eval_every != 0 && c.data.eval.empty()) {
    throw_user_error("train.eval_every = {} needs data.eval; name a token file, or set it to 0",
                     c.train.eval_every);
  }
  if (c.optimizer.min_lr > c.optimizer.lr) {
    throw_user_error("optimizer.min_lr = {} is above optimizer.lr = {}; it must be at most that",
                     c.optimizer.min_lr, c.optimizer.lr);
  }
  if (c.run.watchdog_seconds > 0 && c.run.watchdog_seconds < 1) {
    throw_user_error("run.watchdog_seconds = {}: use 0 (off), or at least 1", c.run.watchdog_seconds);
  }
}

void check_together(const Config& config) {
  check_run(config);
  check_sharding(config);
  check_dtypes(config);
  check_fp8(config);
  check_lora(config);
}

std::int64_t multiple_of_tokens(const Config& c) {
  return c.fsdp.product_dtype == ProductDtype::fp8 ? model::fp8_multiple(c.fsdp.fp8_scales) : 1;
}

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

}  // namespace llampi::train
