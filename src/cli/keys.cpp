// SPDX-License-Identifier: Apache-2.0
#include "cli/keys.hpp"

#include <map>

#include "llampi/core/config_error.hpp"

namespace llampi::cli {

std::string key_of(const std::string& field) {
  static const std::map<std::string, std::string> kKeys = {
      {"device", "run.device"},
      {"folder", "run.dir"},
      {"io", "checkpoint.io"},
      {"graph", "run.cuda_graph"},
      {"share_gpu", "run.share_gpu"},
      {"moments_may_be_missing", "run.resume_with_changes"},
      {"model", "model.config"},
      {"weights", "model.weights"},
      {"adapters", "lora.weights"},
      {"batch.seq_len", "data.seq_len"},
      {"batch.sequences", "train.micro_batch"},
      {"global_batch", "train.global_batch"},
      {"no_decay", "optimizer.no_decay"},
      {"weight_decays", "optimizer.weight_decays"},
      {"lr_factors", "optimizer.lr_factors"},
      {"frozen", "optimizer.frozen"},
      {"precision.frozen", "lora.base_dtype"},
      {"precision.master", "optimizer.master_dtype"},
      {"precision.moment", "optimizer.moment_dtype"},
      {"precision.gradient_shard", "optimizer.gradient_dtype"},
      {"product_dtype", "fsdp.product_dtype"},
      {"fp8_scales", "fsdp.fp8_scales"},
      {"sum_order", "fsdp.sum_order"},
      {"reduction", "fsdp.reduction"},
      {"precision.reduce", "fsdp.reduce_dtype"},
      {"strategy", "fsdp.strategy"},
      {"shard_group_size", "fsdp.shard_group_size"},
      {"shard_optimizer_over_replicas", "fsdp.shard_optimizer_over_replicas"},
      {"all_reduce_stream", "fsdp.all_reduce_stream"},
      {"limit_all_gathers", "fsdp.limit_all_gathers"},
      {"wrap.policy", "fsdp.wrap"},
      {"wrap.modules", "fsdp.wrap_modules"},
      {"wrap.min_params", "fsdp.wrap_min_params"},
      {"offload", "fsdp.cpu_offload"},
      {"offload.residuals", "activation.offload"},
      {"checkpointing", "activation.checkpointing"},
  };
  const auto key = kKeys.find(field);
  return key == kKeys.end() ? field : key->second;
}

std::string sentence_of(const std::exception& error) { return llampi::sentence_of(error, key_of); }

}  // namespace llampi::cli
