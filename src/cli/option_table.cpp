// SPDX-License-Identifier: Apache-2.0
#include "cli/option_table.hpp"

#include "cli/config_values.hpp"
#include "cli/device_options.hpp"

#include <iterator>
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
      {"run.dir", &c.run.dir, "folder for everything that the run writes", {.name = "FOLDER"}},
      {"run.device", one_of(c.run.device),
       "what computes; auto: GPUs where every rank can have one of its own, else CPUs"},
      named(threads_option(c.run.threads), "run.threads"),
      {"run.bind", one_of(c.run.bind),
       "cores of ranks. auto: ranks that the launcher has not bound divide the cores of their node, by NUMA domain and near "
       "their GPUs, unless there are more threads than cores; none: left as they are"},
      {"run.seed", &c.run.seed, "of initial weights and data order"},
      {"run.resume",
       spelled_resume(c.run.resume),
       "auto: continue from the newest whole checkpoint of run.dir; never: refuse a folder with "
       "checkpoints; or the checkpoint to continue from, unless run.dir holds newer ones",
       {.name = "auto|never|FILE"}},
      {"run.resume_with_changes", &c.run.resume_with_changes,
       "continue although keys were changed that bend the curve (data, sequence length, global batch, seed, "
       "schedule, AdamW, dtypes, what is frozen, how the model computes) or cannot take effect "
       "(model.weights); the data go on at the same place of the epoch"},
      {"run.max_hours",
       &c.run.max_hours,
       "stop with a checkpoint, status 75, before so many hours have passed; 0: no limit",
       {.range = kAtLeastZero}},
      {"run.watchdog_seconds",
       &c.run.watchdog_seconds,
       "end the job, with a report, when a rank has not been heard of for so long, or no rank has moved; 0: "
       "off. More than a step takes on GPUs, or a rank held by a debugger",
       {.range = kAtLeastZero}},
      {"run.verify_replicas_every",
       &c.run.verify_replicas_every,
       "steps between comparisons of what several ranks hold of parameters and optimizer state (no_shard, "
       "hybrid_shard), which are made before each save, too; a rank that differs ends the run. 0: none",
       {.range = kAtLeastZero}},
      {"run.share_gpu", &c.run.share_gpu, "let ranks share a GPU: slow, for tests"},
      {"run.deterministic", &c.run.deterministic,
       "equal bits in repeated runs; false: faster products and attention on GPUs, where there are any"},
      {"run.tf32", &c.run.tf32, "on GPUs, float32 matrix products in TF32: 10 bits of mantissa, far faster"},
      {"run.attention", one_of(c.run.attention),
       "on GPUs: cuDNN's kernels, the program's own, or the first where they can do it"},
      {"run.attention_workspace",
       spelled_mebibytes(c.run.attention_workspace),
       "MiB of GPU memory for what cuDNN's deterministic attention keeps in the backward pass; with less it "
       "computes in more and smaller pieces, which takes longer and gives the same bits; auto: as much as "
       "fits, at most an eighth of the GPU's memory",
       {.name = "auto|MIB"}},
      {"run.tuning",
       spelled_tuning(c.run.tuning),
       "on GPUs, which of the library's algorithms has which matrix product. auto: those of the checkpoint's "
       "folder or of the user's cache, else the fastest, found in a step that is rehearsed; FILE: one that "
       "another run left as tuning.json beside its checkpoints; off: the library's first. Another algorithm "
       "has other last bits",
       {.name = "auto|off|FILE"}},
      {"run.cuda_graph", one_of(c.run.cuda_graph),
       "auto: on GPUs, a step whose like has run before is captured and replayed at one call, which takes "
       "some GPU memory; off: every step is issued kernel by kernel. The numbers are the same"},
  };
}

Table model_options(train::Config& c) {
  return {
      {"model.config",
       &c.model.config,
       "Hugging Face config.json, or the folder that holds it; required",
       {.name = "FILE|FOLDER"}},
      {"model.weights",
       spelled_weights(c.model.weights),
       "what to start from: random, a folder with safetensors, a llampi checkpoint, or the folder of a "
       "run: its newest checkpoint",
       {.name = "random|FOLDER|FILE"}},
  };
}

Table data_options(train::Config& c) {
  return {
      {"data.train", &c.data.train, "token file to train on; required", {.name = "FILE"}},
      {"data.eval", &c.data.eval, "token file for evaluation", {.name = "FILE"}},
      {"data.seq_len", &c.data.seq_len, "sequence length in tokens", {.range = kCount}},
      {"data.shuffle", &c.data.shuffle, "a new order in each epoch; false: samples in file order"},
      {"data.document_mask", &c.data.document_mask,
       "attention and positions restart at each document of a packed sequence"},
  };
}

Table train_options(train::Config& c) {
  return {
      {"train.steps",
       &c.train.steps,
       "optimizer steps of the whole run, resumed or not; either this or train.epochs is required",
       {.range = kAtLeastZero}},
      {"train.epochs",
       &c.train.epochs,
       "passes over the data instead of train.steps; an epoch has samples / global_batch steps, rounded down",
       {.range = kAtLeastZero}},
      {"train.micro_batch",
       spelled_micro_batch(c.train.micro_batch),
       "sequences per rank and forward pass; auto: as many as fit, up to 16384 tokens",
       {.name = "auto|N"}},
      {"train.global_batch",
       &c.train.global_batch,
       "sequences per step over all ranks, a multiple of ranks x micro_batch; gradients accumulate over "
       "the quotient",
       {.range = kCount}},
      {"train.eval_every",
       &c.train.eval_every,
       "steps between evaluations on data.eval; 0: never",
       {.range = kAtLeastZero}},
      {"train.not_finite",
       spelled_not_finite(c.train.not_finite),
       "when the loss or a gradient is not finite: stop, or leave the update out, up to so many times in a "
       "row (skip 3)",
       {.name = "stop|skip N"}},
  };
}

Table optimizer_options(train::Config& c) {
  constexpr Range kBeta{.low = 0, .high = 1, .includes_high = false};
  const std::vector<DType> dtypes = {DType::float32, DType::bfloat16};
  return {
      {"optimizer.lr", &c.optimizer.lr, "largest learning rate", {.range = kPositive}},
      {"optimizer.min_lr", &c.optimizer.min_lr, "learning rate of the last step", {.range = kAtLeastZero}},
      {"optimizer.schedule", one_of(c.optimizer.schedule), "how the learning rate falls after warm-up"},
      {"optimizer.warmup_steps",
       &c.optimizer.warmup_steps,
       "at step t, from 1, the learning rate is lr t / warmup_steps until it is lr",
       {.range = kAtLeastZero}},
      {"optimizer.beta1", &c.optimizer.beta1, "AdamW's", {.range = kBeta}},
      {"optimizer.beta2", &c.optimizer.beta2, "AdamW's", {.range = kBeta}},
      {"optimizer.eps", &c.optimizer.eps, "AdamW's, added to the corrected root", {.range = kPositive}},
      {"optimizer.weight_decay", &c.optimizer.weight_decay, "decoupled", {.range = kAtLeastZero}},
      {"optimizer.clip_grad_norm",
       &c.optimizer.clip_grad_norm,
       "largest global gradient norm; 0: no clipping",
       {.range = kAtLeastZero}},
      {"optimizer.no_decay",
       &c.optimizer.no_decay,
       "regular expression, searched in parameter names, of those that do not decay; empty: every 1-D tensor",
       {.name = "REGEX"}},
      {"optimizer.weight_decays",
       &c.optimizer.weight_decays,
       "decay of some parameters, as EXPRESSION=NUMBER separated by spaces: the first that is found in a "
       "name counts, before weight_decay and no_decay",
       {.name = "LIST"}},
      {"optimizer.lr_factors",
       &c.optimizer.lr_factors,
       "likewise, by what the learning rate is multiplied: lm_head=0.5",
       {.name = "LIST"}},
      {"optimizer.frozen",
       &c.optimizer.frozen,
       "regular expression, searched in parameter names, of those that are not trained; they are kept in "
       "fsdp.param_dtype, in checkpoints too",
       {.name = "REGEX"}},
      {"optimizer.loss_scale",
       &c.optimizer.loss_scale,
       "of the first step, where fsdp.param_dtype or reduce_dtype is float16; halved after an overflow, "
       "which leaves the step out, and doubled after 2000 steps without",
       {.range = {.low = 1, .high = 0x1p126}}},
      {"optimizer.master_dtype", one_of(c.optimizer.master_dtype, dtypes),
       "of the sharded parameters that are updated; bfloat16 is rounded stochastically"},
      {"optimizer.gradient_dtype", one_of(c.optimizer.gradient_dtype, dtypes),
       "of the sharded gradients, in which micro-batches add up; bfloat16 needs fsdp.reduce_dtype = "
       "bfloat16"},
      {"optimizer.moment_dtype", one_of(c.optimizer.moment_dtype, dtypes),
       "of AdamW's sharded moments; bfloat16 is rounded stochastically"},
  };
}

Table fsdp_options(train::Config& c) {
  const std::vector<DType> dtypes = {DType::float32, DType::bfloat16, DType::float16};
  return {
      {"fsdp.strategy", one_of(c.fsdp.strategy),
       "what is sharded: full_shard: parameters, gradients and optimizer state; shard_grad_op: the same, "
       "but gathered parameters stay from forward to backward; no_shard: nothing; hybrid_shard, "
       "hybrid_shard_zero2: the first two inside groups of ranks, with replicas across them; upper case is "
       "accepted"},
      {"fsdp.wrap", one_of(c.fsdp.wrap),
       "what becomes an FSDP unit: transformer: embedding, each block, final norm with head; size: as "
       "PyTorch's size_based_auto_wrap_policy; modules: what fsdp.wrap_modules names; none: everything is "
       "one unit"},
      {"fsdp.wrap_min_params",
       &c.fsdp.wrap_min_params,
       "smallest unit of fsdp.wrap = size, in parameters",
       {.range = kAtLeastZero}},
      {"fsdp.wrap_modules",
       spelled_list(c.fsdp.wrap_modules),
       "units of fsdp.wrap = modules: class names (LlamaMLP) or regular expressions searched in module "
       "names, separated by spaces",
       {.name = "NAMES"}},
      {"fsdp.shard_group_size",
       spelled_group_size(c.fsdp.shard_group_size),
       "ranks of a shard group of the hybrid strategies: those of a node, or a number",
       {.name = "node|N"}},
      {"fsdp.shard_optimizer_over_replicas", &c.fsdp.shard_optimizer_over_replicas,
       "divide the optimizer state also among the ranks that hold the same parameters (no_shard, where it is known as "
       "ZeRO stage 1, and the hybrid strategies): each updates its part and gathers the others' after the update; less "
       "memory, the same bits"},
      {"fsdp.accumulate", one_of(c.fsdp.accumulate),
       "micro-batches add up in sharded gradients, each reduced (small), or in whole ones, reduced once "
       "(fast)"},
      {"fsdp.sum_order", one_of(c.fsdp.sum_order),
       "in which order gradients of micro-batches are added. any: the fastest; last bits depend on the number of ranks. "
       "tree: a binary tree over all micro-batches of a step, so that 1, 2, 4, 8, ... ranks and all strategies give the "
       "same bits; needs gradients summed in float32 and, on several GPUs, fsdp.reduction = tree"},
      {"fsdp.reduction", one_of(c.fsdp.reduction),
       "how GPUs sum gradients over ranks. tree: each rank sums what it owns in float32, in the order of a tree over ranks, "
       "as ranks on CPUs always do; nccl: NCCL does, in the dtype that travels and in an order of its own"},
      {"fsdp.nccl_ctas",
       &c.fsdp.nccl_ctas,
       "maximum number of thread blocks, and so of multiprocessors, that a collective between GPUs uses; 0: NCCL decides",
       {.range = {0, 64}}},
      {"fsdp.nccl_window", &c.fsdp.nccl_window,
       "register the memory of parameters and gradients as a symmetric window of each NCCL communicator (NCCL 2.27 or newer)"},
      {"fsdp.nccl_copy_engines", &c.fsdp.nccl_copy_engines,
       "gather parameters with copy engines instead of multiprocessors, where NCCL can (2.28 or newer); needs "
       "fsdp.nccl_window = true"},
      {"fsdp.nccl_split_share", &c.fsdp.nccl_split_share,
       "the NCCL communicators of a shard group share connections and buffers (ncclCommSplit): less memory and a faster start, but "
       "NCCL no longer gathers and reduces at the same time"},
      {"fsdp.product_sms",
       &c.fsdp.product_sms,
       "multiprocessors of a GPU for which cuBLASLt chooses matrix products, so that the others are left to collectives that "
       "run beside them; 0: all. Another number can mean other algorithms, and then other last bits",
       {.range = {0, 1024}}},
      {"fsdp.all_reduce_stream", &c.fsdp.all_reduce_stream,
       "hybrid strategies: sums over replicas have a stream and a workspace of their own, so that gradients of the next unit "
       "are summed inside its shard group meanwhile"},
      {"fsdp.backward_prefetch", one_of(c.fsdp.backward_prefetch),
       "the next unit is gathered before (pre) or after (post) the backward pass of the current one"},
      {"fsdp.forward_prefetch", &c.fsdp.forward_prefetch,
       "the next unit is gathered while the current one computes"},
      {"fsdp.limit_all_gathers",
       &c.fsdp.limit_all_gathers,
       "units gathered for passing use at one time",
       {.range = kAtLeastOne}},
      {"fsdp.param_dtype", one_of(c.fsdp.param_dtype, "auto", dtypes),
       "parameters are gathered and multiplied in; auto: bfloat16 on GPUs, float32 on CPUs, which gather "
       "in any of them and compute in float32"},
      {"fsdp.product_dtype", one_of(c.fsdp.product_dtype),
       "dtype of the matrix products of the blocks. auto: fsdp.param_dtype; fp8: float8_e4m3fn for weights and "
       "activations, fsdp.fp8_gradient_dtype for gradients, with scales as fsdp.fp8_scales says; weights are gathered in 8 "
       "bits too. Embedding, head, norms, attention and what is saved in checkpoints stay as they are. GPUs of compute "
       "capability 8.9 or newer, and CPUs, which compute the same numbers slowly"},
      {"fsdp.fp8_gradient_dtype",
       one_of(c.fsdp.fp8_gradient_dtype, {DType::float8_e5m2, DType::float8_e4m3fn}),
       "dtype of gradients in the products of fsdp.product_dtype = fp8: e5m2 has more range, e4m3 more precision"},
      {"fsdp.fp8_scales", one_of(c.fsdp.fp8_scales),
       "scales of what is multiplied in FP8. tensor: one for each operand; block: one for each 128 x 128 of a weight and "
       "each 1 x 128 of activations and gradients, with which float8_e4m3fn is usual for gradients too. On GPUs block "
       "needs compute capability 9.0"},
      {"fsdp.reduce_dtype", one_of(c.fsdp.reduce_dtype, dtypes),
       "gradients are sent in; MPI (CPUs) adds them in float32 in any case, NCCL (GPUs) in this dtype"},
      {"fsdp.cpu_offload", one_of(c.fsdp.cpu_offload),
       "what is kept in host memory: optimizer: moments and master; params: the sharded parameters too, "
       "which are copied to the device before each gather"},
      {"fsdp.offload_step", one_of(c.fsdp.offload_step),
       "where AdamW runs with cpu_offload: device: the state goes there and back, two units at a time; host: "
       "gradients come out, new parameters go in (a third of the traffic, the CPU's speed)"},
      {"fsdp.sync_init", one_of(c.fsdp.sync_init),
       "how model.weights are read: read: each rank what it needs; broadcast: rank 0 reads everything and "
       "sends it, for slow file systems"},
  };
}

Table other_options(train::Config& c) {
  return {
      {"activation.checkpointing",
       spelled_checkpointing(c.activation.checkpointing),
       "what is recomputed in the backward pass instead of kept. selective: norms and activation functions, "
       "while the outputs of attention and of matrix products are kept; feed_forward: that, and the "
       "feed-forward network from its input; full: each block from its input; auto: as little as fits, block "
       "by block. With numbers of blocks, from the first one on: full 4, feed_forward 12, selective",
       {.name = "none|selective|feed_forward|full|auto"}},
      {"activation.offload",
       one_of(c.activation.offload, "auto",
              {train::ActivationOffload::none, train::ActivationOffload::residuals}),
       "what is kept in host memory between the forward and the backward pass. residuals: the inputs of attention "
       "and feed-forward networks, copied while others are computed; auto: that, on GPUs, where "
       "activation.checkpointing = auto has less to recompute then"},
      {"checkpoint.every",
       &c.checkpoint.every,
       "steps between checkpoints; 0: only at the end",
       {.range = kAtLeastZero}},
      {"checkpoint.keep", &c.checkpoint.keep, "newest checkpoints that are kept", {.range = kAtLeastOne}},
      {"checkpoint.keep_every",
       &c.checkpoint.keep_every,
       "checkpoints of steps that this divides are kept for good; 0: none",
       {.range = kAtLeastZero}},
      {"checkpoint.async", &c.checkpoint.async,
       "write while training goes on, from a copy of the state in host memory"},
      {"checkpoint.fallback_dir",
       &c.checkpoint.fallback_dir,
       "folder on another disk for a checkpoint that run.dir has no room for; run.resume = auto looks there, "
       "too",
       {.name = "FOLDER"}},
      {"checkpoint.wait_minutes",
       &c.checkpoint.wait_minutes,
       "how long a save that finds no room waits for some, with the state in memory, before the run ends; "
       "0: not at all",
       {.range = kAtLeastZero}},
      {"checkpoint.content", one_of(c.checkpoint.content),
       "all: what a run needs to continue exactly; weights: without optimizer state, a third of the size, for evaluation, export "
       "and model.weights. A run that is stopped saves all in any case"},
      {"checkpoint.state_dtype", one_of(c.checkpoint.state_dtype, "auto", {DType::float32, DType::bfloat16}),
       "dtype of optimizer state in files; auto: optimizer.moment_dtype. With less than that a continued run is not exactly the "
       "one that was saved"},
      {"checkpoint.io", one_of(c.checkpoint.io),
       "how values are written and read. direct: each rank, or one rank per node for several, writes by itself; hdf5: collective "
       "reads and writes of parallel HDF5, which can hang if the disk of one rank fails (needs run.watchdog_seconds > 0)"},
      {"checkpoint.writers_per_node",
       &c.checkpoint.writers_per_node,
       "number of writer ranks per node, which gather the data of the others of the node; 0: all ranks in jobs of up to 256 (with "
       "checkpoint.io = hdf5 at most 8 per node), in larger ones as few as one per node",
       {.range = kAtLeastZero}},
      {"checkpoint.stripes",
       &c.checkpoint.stripes,
       "servers that a checkpoint is spread over, where MPI-IO knows the file system's stripes (Lustre); "
       "0: as the folder says",
       {.range = kAtLeastZero}},
      {"checkpoint.stripe_bytes",
       &c.checkpoint.stripe_bytes,
       "size of these stripes, at which writes end in any file system; 0: as the folder says",
       {.range = kAtLeastZero}},
      {"log.every", &c.log.every, "steps between lines on the console", {.range = kAtLeastOne}},
      {"log.trace",
       spelled_steps(c.log.trace),
       "steps of which a Chrome trace is written, as 3 or 3-5; 0 or empty: none",
       {.name = "STEPS"}},
      {"log.tensorboard", &c.log.tensorboard, "write event files", {.built = {"false"}}},
  };
}

}  // namespace

std::vector<Option> option_table(train::Config& config) {
  Table table;
  for (Table part : {run_options(config), model_options(config), data_options(config), train_options(config),
                     optimizer_options(config), fsdp_options(config), other_options(config)}) {
    std::move(part.begin(), part.end(), std::back_inserter(table));
  }
  return table;
}

}  // namespace llampi::cli
