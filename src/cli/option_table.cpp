// SPDX-License-Identifier: Apache-2.0
#include "cli/option_table.hpp"

#include <algorithm>

#include "cli/config_values.hpp"
#include "cli/device_options.hpp"

#include <iterator>
#include <limits>
#include <utility>

namespace llampi::cli {
namespace {

using Table = std::vector<Option>;

constexpr Range kCount{.low = 1, .high = 1e9};  ///< of sequences or tokens; products stay within 64 bits

Option named(Option option, std::string key) {
  option.key = std::move(key);
  return option;
}

Table run_options(train::Config& c) {
  return {
      {"run.dir",
       &c.run.dir,
       "folder for everything the run writes; with several nodes, on a file system that they share",
       {.name = "FOLDER"}},
      {"run.device", one_of(c.run.device),
       "device to compute on. auto: GPUs if every rank can have its own, otherwise CPUs"},
      named(threads_option(c.run.threads), "run.threads"),
      {"run.bind", one_of(c.run.bind),
       "binding of ranks to CPU cores. auto: ranks that the launcher has not bound divide the cores of their "
       "node, by NUMA domain and near their GPUs, unless there are more threads than cores; none: leave the "
       "binding as it is"},
      {"run.seed", &c.run.seed, "random seed of the initial weights and of the data order"},
      {"run.resume",
       spelled_resume(c.run.resume),
       "what to continue from. auto: the newest complete checkpoint in run.dir; never: refuse a folder that "
       "has checkpoints; FILE, FOLDER: start a new run from this checkpoint, or from the newest one of the run in this folder; once run.dir has "
       "checkpoints of the new run, continue from its newest",
       {.name = "auto|never|FILE|FOLDER"}},
      {"run.resume_with_changes", &c.run.resume_with_changes,
       "allow changed keys that affect the loss curve (data, sequence length, global batch, seed, schedule, "
       "AdamW, dtypes, frozen parameters, model arithmetic) or can no longer take effect (model.weights); "
       "training continues in the same epoch, after as many tokens of it"},
      {"run.max_hours",
       &c.run.max_hours,
       "hours that this job may take, counted from its start: save a checkpoint and exit with status 75 before they are over; 0: no limit",
       {.range = kAtLeastZero}},
      {"run.watchdog_seconds",
       &c.run.watchdog_seconds,
       "end the job with a report if a rank sends no heartbeat, or no rank makes progress, for this many "
       "seconds; 0: off. On GPUs, after a step that took more than half of that: three times that step. Choose 0 while a debugger holds a rank",
       {.range = kAtLeastZero}},
      {"run.verify_replicas_every",
       &c.run.verify_replicas_every,
       "number of steps between checks that ranks holding the same parameters and optimizer state (no_shard, "
       "hybrid strategies) hold the same bits; also checked before each checkpoint. A rank that differs ends "
       "the run. 0: no checks",
       {.range = kAtLeastZero}},
      {"run.share_gpu", &c.run.share_gpu, "allow several ranks on one GPU (slow; for tests)"},
      {"run.deterministic", &c.run.deterministic,
       "compute the same bits in repeated runs. false: allow faster non-deterministic matrix products and "
       "attention on GPUs"},
      {"run.tf32", &c.run.tf32,
       "compute float32 matrix products in TF32 on GPUs: much faster, with a 10-bit mantissa"},
      {"run.attention", one_of(c.run.attention),
       "attention kernels on GPUs. auto: cuDNN where it supports the shapes, otherwise native kernels"},
      {"run.attention_workspace",
       spelled_mebibytes(c.run.attention_workspace),
       "GPU memory in MiB for cuDNN's deterministic attention backward pass. With less memory it computes "
       "more, smaller pieces: slower, with the same bits. auto: as much as fits, at most an eighth of the "
       "GPU's memory",
       {.name = "auto|MIB"}},
      {"run.logits_workspace",
       spelled_mebibytes(c.run.logits_workspace),
       "GPU memory in MiB for the logits of the loss. The loss is computed in chunks of as many tokens as fit; each chunk reads and writes the "
       "gradient of the head's weight. auto: enough for a whole micro-batch if that "
       "fits, otherwise 1024; with fsdp.sum_order = tree always 1024. Another chunk size changes the last bits",
       {.name = "auto|MIB"}},
      {"run.tuning",
       spelled_tuning(c.run.tuning),
       "choice of matrix-product algorithms on GPUs. auto: read tuning.json from the checkpoint folder or the "
       "user's cache, otherwise time them before the run in steps of random tokens; FILE: tuning.json of another "
       "run; off: no timing, the library's default. A run that continues first takes the tuning.json of its checkpoint folder, "
       "also with off. Another algorithm changes the last bits",
       {.name = "auto|off|FILE"}},
      {"run.cuda_graph", one_of(c.run.cuda_graph),
       "CUDA graphs. auto: capture a training step on GPUs and replay it (uses some GPU memory, same numbers); "
       "off: launch every kernel separately"},
  };
}

Table model_options(train::Config& c) {
  return {
      {"model.config",
       &c.model.config,
       "path of a Hugging Face config.json or of its folder. Default: model.weights, if that is a folder with a config.json; "
       "otherwise required",
       {.name = "FILE|FOLDER"}},
      {"model.weights",
       spelled_weights(c.model.weights),
       "initial weights: random, a folder with safetensors files, a llampi checkpoint, or a run folder (its "
       "newest checkpoint)",
       {.name = "random|FOLDER|FILE"}},
  };
}

Table lora_options(train::Config& c) {
  constexpr Range kDropout{.low = 0, .high = 1, .includes_high = false};
  return {
      {"lora.rank",
       &c.lora.rank,
       "train low-rank adapters (LoRA) of this rank instead of the model itself, which is frozen: model.weights is their "
       "base, and checkpoints hold the adapters alone. 0: train the model",
       {.range = kAtLeastZero}},
      {"lora.alpha", &c.lora.alpha, "adapters: numerator of the scaling factor", {.range = kPositive}},
      {"lora.dropout",
       &c.lora.dropout,
       "adapters: probability with which an element of their input is dropped in training",
       {.range = kDropout}},
      {"lora.targets",
       &c.lora.targets,
       "linear layers that get an adapter: a regular expression searched in their names. q_proj|v_proj: the query "
       "and value projections of every block; proj: all linear layers of the blocks",
       {.name = "REGEX"}},
      {"lora.scaling", one_of(c.lora.scaling),
       "scaling factor of adapters. standard: alpha / rank; rslora: alpha / sqrt(rank)"},
      {"lora.base_dtype", one_of(c.lora.base_dtype, {DType::bfloat16, DType::float32, DType::int8_blocks}),
       "dtype in which the frozen base is kept and all-gathered; extra precision of model.weights is lost. int8: the "
       "matrices of the blocks, with a scale for each 128 elements; all else in bfloat16"},
      {"lora.weights",
       spelled_weights(c.lora.weights),
       "initial adapters: random (A uniform, B zero), a folder that PEFT or llampi export --adapter wrote, a checkpoint of a "
       "run with lora.rank, or its run folder. Rank, alpha, scaling and linear layers of the adapters must equal "
       "lora.rank, lora.alpha, lora.scaling and lora.targets",
       {.name = "random|FOLDER|FILE"}},
  };
}

Table data_options(train::Config& c) {
  return {
      {"data.train",
       &c.data.train,
       "token file to train on (required), or several: FILE,FILE:TIMES. An epoch reads each sample of a file once, or TIMES "
       "times (0.5: half of the samples, others in the next epoch); a folder stands for its *.h5",
       {.name = "FILE"}},
      {"data.eval",
       &c.data.eval,
       "token file to evaluate on, or several: FILE,FILE. Each has its loss, and all labels together have one",
       {.name = "FILE"}},
      {"data.seq_len", &c.data.seq_len, "sequence length in tokens", {.range = kCount}},
      {"data.shuffle", &c.data.shuffle, "shuffle the samples in every epoch; false: file order"},
      {"data.document_mask", &c.data.document_mask,
       "restart attention and positions at every document of a packed sequence"},
  };
}

Table train_options(train::Config& c) {
  return {
      {"train.steps",
       &c.train.steps,
       "total number of optimizer steps, including those before a resume; either this or train.epochs is "
       "required",
       {.range = kAtLeastZero}},
      {"train.epochs",
       &c.train.epochs,
       "number of passes over the data, instead of train.steps; an epoch is samples / global_batch steps, "
       "rounded down",
       {.range = kAtLeastZero}},
      {"train.micro_batch",
       spelled_micro_batch(c.train.micro_batch),
       "sequences per rank in each forward pass. auto: as many as fit in memory, up to 16384 tokens; "
       "with activation.checkpointing = auto fewer, if they take less time without recomputation",
       {.name = "auto|N"}},
      {"train.global_batch",
       &c.train.global_batch,
       "sequences per optimizer step over all ranks. Each rank computes global_batch / (ranks x micro_batch) "
       "micro-batches in a step (gradient accumulation), which must be a whole number",
       {.range = kCount}},
      {"train.eval_every",
       &c.train.eval_every,
       "number of steps between evaluations on data.eval; 0: never",
       {.range = kAtLeastZero}},
      {"train.not_finite",
       spelled_not_finite(c.train.not_finite),
       "what to do when the loss or a gradient is not finite. stop: end the run; skip N: skip the update, at "
       "most N times in a row",
       {.name = "stop|skip N"}},
  };
}

Table optimizer_options(train::Config& c) {
  constexpr Range kBeta{.low = 0, .high = 1, .includes_high = false};
  constexpr Range kFloat32{.low =
                               std::numeric_limits<float>::min()};  // what AdamW computes in: less would be 0
  const std::vector<DType> dtypes = {DType::float32, DType::bfloat16};
  return {
      {"optimizer.lr", &c.optimizer.lr, "peak learning rate, reached after warm-up", {.range = kPositive}},
      {"optimizer.min_lr", &c.optimizer.min_lr, "final learning rate", {.range = kAtLeastZero}},
      {"optimizer.schedule", one_of(c.optimizer.schedule),
       "decay of the learning rate after warm-up, to optimizer.min_lr in the last step"},
      {"optimizer.warmup_steps",
       &c.optimizer.warmup_steps,
       "number of steps of linear learning-rate warm-up",
       {.range = kAtLeastZero}},
      {"optimizer.beta1", &c.optimizer.beta1, "AdamW: decay rate of the first moment", {.range = kBeta}},
      {"optimizer.beta2", &c.optimizer.beta2, "AdamW: decay rate of the second moment", {.range = kBeta}},
      {"optimizer.eps",
       &c.optimizer.eps,
       "AdamW: epsilon, added to the square root of the corrected second moment",
       {.range = kFloat32}},
      {"optimizer.weight_decay",
       &c.optimizer.weight_decay,
       "AdamW: decoupled weight decay",
       {.range = kAtLeastZero}},
      {"optimizer.clip_grad_norm",
       &c.optimizer.clip_grad_norm,
       "maximum global gradient norm; larger gradients are scaled down. 0: no clipping",
       {.range = kAtLeastZero}},
      {"optimizer.no_decay",
       &c.optimizer.no_decay,
       "parameters without weight decay: a regular expression searched in parameter names; empty: all 1-D "
       "tensors",
       {.name = "REGEX"}},
      {"optimizer.weight_decays",
       &c.optimizer.weight_decays,
       "weight decay of some parameters, as a list of REGEX=NUMBER; the first match in a parameter's name is "
       "used, ahead of weight_decay and no_decay",
       {.name = "LIST"}},
      {"optimizer.lr_factors",
       &c.optimizer.lr_factors,
       "learning-rate multipliers of some parameters, as a list of REGEX=NUMBER: lm_head=0.5",
       {.name = "LIST"}},
      {"optimizer.frozen",
       &c.optimizer.frozen,
       "parameters that are not trained: a regular expression searched in parameter names. They are kept in "
       "fsdp.param_dtype; checkpoints have these rounded values as float32",
       {.name = "REGEX"}},
      {"optimizer.loss_scale",
       &c.optimizer.loss_scale,
       "initial loss scale where fsdp.param_dtype or reduce_dtype is float16; halved after an overflow, which "
       "skips the step, and doubled after 2000 steps without one",
       {.range = {.low = 1, .high = 0x1p126}}},
      {"optimizer.master_dtype", one_of(c.optimizer.master_dtype, dtypes),
       "dtype of the sharded master parameters that AdamW updates; bfloat16 uses stochastic rounding"},
      {"optimizer.gradient_dtype", one_of(c.optimizer.gradient_dtype, dtypes),
       "dtype of the sharded gradients, in which micro-batches accumulate; bfloat16 requires fsdp.reduce_dtype "
       "= bfloat16"},
      {"optimizer.moment_dtype", one_of(c.optimizer.moment_dtype, dtypes),
       "dtype of AdamW's sharded moments; bfloat16 uses stochastic rounding"},
  };
}

Table fsdp_options(train::Config& c) {
  const std::vector<DType> dtypes = {DType::float32, DType::bfloat16, DType::float16};
  return {
      {"fsdp.strategy", one_of(c.fsdp.strategy),
       "sharding strategy. full_shard: shard parameters, gradients and optimizer state (ZeRO-3); "
       "shard_grad_op: the same, but parameters stay unsharded from forward to backward; no_shard: replicate "
       "everything (DDP); hybrid_shard, hybrid_shard_zero2: full_shard or shard_grad_op within groups of "
       "ranks, replicated across groups. Upper case is accepted"},
      {"fsdp.wrap", one_of(c.fsdp.wrap),
       "wrap policy, which decides what an FSDP unit is. transformer: embedding, each block, final norm with "
       "head; size: as PyTorch's size_based_auto_wrap_policy; modules: the modules of fsdp.wrap_modules; none: "
       "the whole model is one unit"},
      {"fsdp.wrap_min_params",
       &c.fsdp.wrap_min_params,
       "minimum number of parameters of a unit for fsdp.wrap = size",
       {.range = kAtLeastZero}},
      {"fsdp.wrap_modules",
       spelled_list(c.fsdp.wrap_modules),
       "modules that become units for fsdp.wrap = modules: class names (LlamaMLP) or regular expressions "
       "searched in module names, separated by spaces",
       {.name = "NAMES"}},
      {"fsdp.shard_group_size",
       spelled_group_size(c.fsdp.shard_group_size),
       "ranks per shard group of the hybrid strategies: a number, or node for all ranks of a node",
       {.name = "node|N"}},
      {"fsdp.shard_optimizer_over_replicas", &c.fsdp.shard_optimizer_over_replicas,
       "shard the optimizer state over replicas too (no_shard, which makes it ZeRO-1, and the hybrid "
       "strategies): each replica updates its part and all-gathers the others. Less memory, the same bits"},
      {"fsdp.accumulate", one_of(c.fsdp.accumulate),
       "gradient accumulation. sharded: reduce after every micro-batch (least memory); unsharded: accumulate "
       "locally and reduce once per step, like no_sync (fastest)"},
      {"fsdp.sum_order", one_of(c.fsdp.sum_order),
       "order in which the gradients of micro-batches are added. any: fastest; the last bits depend on the "
       "number of ranks; tree: a binary tree over all micro-batches of a step, which gives the same bits on 1, "
       "2, 4, 8, ... ranks and with every strategy. tree requires float32 gradients and, on several GPUs, "
       "fsdp.reduction = tree"},
      {"fsdp.reduction", one_of(c.fsdp.reduction),
       "sums of gradients over GPUs. tree: in float32, in the order of a binary tree over ranks, as on CPUs; "
       "nccl: NCCL's own reduction, in fsdp.reduce_dtype and in NCCL's order"},
      {"fsdp.nccl_ctas",
       &c.fsdp.nccl_ctas,
       "maximum number of thread blocks (multiprocessors) that a NCCL collective uses; 0: NCCL decides",
       {.range = {0, 64}}},
      {"fsdp.nccl_window", &c.fsdp.nccl_window,
       "register parameters and gradients as a symmetric window of each NCCL communicator"},
      {"fsdp.nccl_copy_engines", &c.fsdp.nccl_copy_engines,
       "all-gather parameters with copy engines instead of multiprocessors where NCCL supports it (2.28 or "
       "newer), without CUDA graphs; requires fsdp.nccl_window = true"},
      {"fsdp.nccl_split_share", &c.fsdp.nccl_split_share,
       "share resources between the NCCL communicators of a shard group (ncclCommSplit): less memory and a faster "
       "start, but all-gathers and reduce-scatters no longer overlap"},
      {"fsdp.product_sms",
       &c.fsdp.product_sms,
       "number of multiprocessors that cuBLASLt plans matrix products for, which leaves the others to collectives; "
       "0: all. Another number can select other algorithms, which changes the last bits",
       {.range = {0, 1024}}},
      {"fsdp.all_reduce_stream", &c.fsdp.all_reduce_stream,
       "hybrid strategies: all-reduce over replicas on its own stream, so that it overlaps with the next unit's "
       "reduce-scatter; uses an additional workspace"},
      {"fsdp.backward_prefetch", one_of(c.fsdp.backward_prefetch),
       "all-gather the next unit before (pre) or after (post) the current unit's backward pass"},
      {"fsdp.forward_prefetch", &c.fsdp.forward_prefetch,
       "all-gather the next unit during the current unit's forward pass"},
      {"fsdp.limit_all_gathers",
       &c.fsdp.limit_all_gathers,
       "maximum number of FSDP units unsharded at the same time",
       {.range = kAtLeastOne}},
      {"fsdp.param_dtype", one_of(c.fsdp.param_dtype, "auto", dtypes),
       "dtype of the all-gathered parameters, and of compute on GPUs. auto: bfloat16 on GPUs, float32 on CPUs "
       "(CPUs always compute in float32)"},
      {"fsdp.product_dtype", one_of(c.fsdp.product_dtype),
       "dtype of the matrix products in the blocks. auto: fsdp.param_dtype; fp8: float8_e4m3fn for weights and "
       "activations, fsdp.fp8_gradient_dtype for gradients; weights are all-gathered in 8 bits too. Embedding, "
       "head, norms, attention and checkpoints are unchanged. Requires a GPU of compute capability 8.9 or "
       "newer, or CPUs, which compute the same numbers slowly"},
      {"fsdp.fp8_gradient_dtype",
       one_of(c.fsdp.fp8_gradient_dtype, {DType::float8_e5m2, DType::float8_e4m3fn}),
       "dtype of gradients in FP8 matrix products: float8_e5m2 has more range, float8_e4m3fn more precision"},
      {"fsdp.fp8_scales", one_of(c.fsdp.fp8_scales),
       "scaling factors of FP8 matrix products. tensor: one per operand; block: one per 128 x 128 block of a "
       "weight and per 1 x 128 of activations and gradients (usually with fsdp.fp8_gradient_dtype = "
       "float8_e4m3fn). On GPUs, block requires compute capability 9.0"},
      {"fsdp.reduce_dtype", one_of(c.fsdp.reduce_dtype, dtypes),
       "dtype in which gradients are communicated. They are summed in float32, except with fsdp.reduction = "
       "nccl. Hybrid strategies: inside shard groups; between replicas it is optimizer.gradient_dtype"},
      {"fsdp.cpu_offload", one_of(c.fsdp.cpu_offload),
       "state kept in host memory. optimizer: master parameters and moments; params: sharded parameters too, "
       "copied to the device before each all-gather"},
      {"fsdp.offload_step", one_of(c.fsdp.offload_step),
       "where AdamW runs with fsdp.cpu_offload. device: the state is copied to the device and back, two units "
       "at a time; host: AdamW runs on the CPU, and only gradients and new parameters are copied: a quarter of the traffic with "
       "parameters in 16 bits, half with float32"},
      {"fsdp.sync_init", one_of(c.fsdp.sync_init),
       "how model.weights are read. read: each rank reads what it needs; broadcast: rank 0 reads everything "
       "and broadcasts it, for slow file systems"},
  };
}

Table other_options(train::Config& c) {
  return {
      {"activation.checkpointing",
       spelled_checkpointing(c.activation.checkpointing),
       "activation checkpointing: what the backward pass recomputes. selective: norms and activation "
       "functions; offload: those, and what the feed-forward network saves is kept in host memory; feed_forward: those and the "
       "feed-forward network; full: whole blocks; auto: as little as fits in memory, block by block. Blocks can be "
       "counted: full 4, feed_forward 12, selective is the first 4 blocks full, the next 12 feed_forward, all others selective; blocks with offload are spread evenly over the model, and the others counted from the first of those that remain",
       {.name = "none|selective|offload|feed_forward|full|auto"}},
      {"activation.offload",
       one_of(c.activation.offload, "auto",
              {train::ActivationOffload::none, train::ActivationOffload::residuals}),
       "activations kept in host memory between forward and backward. residuals: the inputs of attention and "
       "feed-forward networks, copied during computation; auto: on GPUs with "
       "activation.checkpointing = auto, residuals if less is recomputed then; only with this value may activation.checkpointing = auto also choose offload for some blocks"},
      {"checkpoint.every",
       &c.checkpoint.every,
       "number of steps between checkpoints; 0: only at the end",
       {.range = kAtLeastZero}},
      {"checkpoint.keep",
       &c.checkpoint.keep,
       "number of newest checkpoints to keep; checkpoint.keep_every = 1 keeps all",
       {.range = {.low = 1, .advice = "; checkpoint.keep_every = 1 keeps all"}}},
      {"checkpoint.keep_every",
       &c.checkpoint.keep_every,
       "keep every checkpoint whose step is a multiple of this number; 0: none",
       {.range = kAtLeastZero}},
      {"checkpoint.async", &c.checkpoint.async,
       "write checkpoints in the background, from a copy of the state in host memory"},
      {"checkpoint.fallback_dir",
       &c.checkpoint.fallback_dir,
       "folder on another disk, used when run.dir has no room for a checkpoint; the same command "
       "continues from there",
       {.name = "FOLDER"}},
      {"checkpoint.wait_minutes",
       &c.checkpoint.wait_minutes,
       "how many minutes to wait for disk space, with the state in memory, before the run ends; 0: do not wait",
       {.range = kAtLeastZero}},
      {"checkpoint.content", one_of(c.checkpoint.content),
       "content of checkpoints. all: everything a run needs to continue exactly; weights: no optimizer state "
       "(the file is a third of the size), for evaluation, export and model.weights. A run that is stopped always saves "
       "everything"},
      {"checkpoint.state_dtype", one_of(c.checkpoint.state_dtype, "auto", {DType::float32, DType::bfloat16}),
       "dtype of the optimizer state in checkpoints. auto: optimizer.moment_dtype. With a narrower dtype a "
       "resumed run is not exactly the saved one"},
      {"checkpoint.io", one_of(c.checkpoint.io),
       "how checkpoints are written and read. direct: each writer rank writes its own part of the file (checkpoint.writers_per_node); "
       "hdf5: collective reads and writes of parallel HDF5, which can hang if one rank's disk fails (requires "
       "run.watchdog_seconds > 0)"},
      {"checkpoint.writers_per_node",
       &c.checkpoint.writers_per_node,
       "number of writer ranks per node, which gather the data of their node; 0: all ranks in jobs of up to "
       "256 (at most 8 per node with checkpoint.io = hdf5), as few as one per node in larger jobs",
       {.range = kAtLeastZero}},
      {"checkpoint.stripes",
       &c.checkpoint.stripes,
       "number of storage servers to spread a checkpoint over, where MPI-IO supports it (Lustre); 0: the "
       "folder's setting",
       {.range = kAtLeastZero}},
      {"checkpoint.stripe_bytes",
       &c.checkpoint.stripe_bytes,
       "stripe size in bytes; writes end at multiples of it; 0: the folder's setting",
       {.range = kAtLeastZero}},
      {"log.every", &c.log.every, "number of steps between lines on the console", {.range = kAtLeastOne}},
      {"log.trace",
       spelled_steps(c.log.trace),
       "steps to write a Chrome trace of, such as 3 or 3-5; 0 or empty: none",
       {.name = "STEPS"}},
      {"log.plan", &c.log.plan, "print the table of planned memory when a run starts, as llampi plan does"},
      {"log.tensorboard", &c.log.tensorboard,
       "write event files for TensorBoard, in the folder tensorboard of run.dir"},
      {"log.prometheus",
       &c.log.prometheus,
       "text file with the metrics of the last step, for Prometheus (node_exporter reads *.prom files), replaced after a step "
       "once it is 1 s old; empty: none",
       {.name = "FILE"}},
  };
}

}  // namespace

std::vector<Option> option_table(train::Config& config) {
  Table table;
  for (Table part :
       {run_options(config), model_options(config), lora_options(config), data_options(config),
        train_options(config), optimizer_options(config), fsdp_options(config), other_options(config)}) {
    std::move(part.begin(), part.end(), std::back_inserter(table));
  }
  return table;
}

std::map<std::string, std::string> values_of(const train::Config& config) {
  train::Config copy = config;
  std::map<std::string, std::string> values;
  for (const auto& option : option_table(copy)) values[option.key] = value_text(option);
  return values;
}

std::vector<plan::TunedKey> changed_keys(const train::Config& before, const train::Config& after) {
  train::Config was = before, is = after;
  const auto old_table = option_table(was), table = option_table(is);
  std::vector<plan::TunedKey> changed;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::string value = value_text(table[i]), old = value_text(old_table[i]);
    if (value != old) changed.push_back({table[i].key, value, old});
  }
  return changed;
}

bool are_kept(const std::set<std::string>& keys, const train::Config& before, const train::Config& after) {
  return std::ranges::none_of(changed_keys(before, after),
                              [&](const plan::TunedKey& changed) { return keys.contains(changed.key); });
}

}  // namespace llampi::cli
