// The resolved configuration of a run: one member per key of the contract, `section.key` in `section.key`.
// What the keys mean and which values they take is said in one place, the option table
// (src/cli/option_table.cpp). Members whose only value is the default belong to features that are not built
// yet.
#pragma once

#include <cstdint>
#include <string>

#include "llampi/core/tensor.hpp"

namespace llampi::train {

struct Config {
  struct {
    std::string dir = "runs/default";
    std::string device = "auto";
    std::uint64_t seed = 0;
    std::string resume = "auto";
    bool resume_with_changes = false;
    double max_hours = 0;                    ///< 0: none
    double watchdog_seconds = 600;           ///< 0: off
    std::int64_t verify_replicas_every = 0;  ///< 0: never
    bool share_gpu = false;
    bool deterministic = true;
    bool tf32 = false;
    std::string attention = "auto";
    std::string cuda_graph = "auto";
    int threads = 0;  ///< per rank; 0: OMP_NUM_THREADS, or cores / ranks on the node
  } run;
  struct {
    std::string config;
    std::string weights = "random";
  } model;
  struct {
    std::string train, eval;
    std::int64_t seq_len = 1024;
    bool shuffle = true;
    bool document_mask = true;
  } data;
  struct {
    std::int64_t steps = 0;  ///< 0: from epochs; exactly one of the two is positive
    double epochs = 0;
    std::int64_t micro_batch = 1;
    std::int64_t global_batch = 8;
    std::int64_t eval_every = 0;
    std::string not_finite = "stop";
  } train;
  struct {
    double lr = 3e-4, min_lr = 0;
    std::string schedule = "cosine";
    std::int64_t warmup_steps = 0;
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, clip_grad_norm = 1.0;
    std::string no_decay;  ///< regular expression; empty: every 1-D tensor
    std::string weight_decays, lr_factors, frozen;
    double loss_scale = 65536;  ///< float16: of the first step
    std::string master_dtype = "float32", moment_dtype = "float32", gradient_dtype = "float32";
  } optimizer;
  struct {
    std::string strategy = "full_shard";
    std::string wrap = "transformer";
    std::int64_t wrap_min_params = 100'000'000;
    std::string wrap_modules;  ///< names or expressions, separated by spaces
    std::string accumulate = "sharded";
    std::string shard_group_size = "node";
    std::string backward_prefetch = "pre";
    bool forward_prefetch = true;
    int limit_all_gathers = 2;
    std::string param_dtype = "auto", reduce_dtype = "float32";
    std::string cpu_offload = "none";
    std::string offload_step = "device";
    std::string sync_init = "read";
  } fsdp;
  struct {
    std::string checkpointing = "none";
  } activation;
  struct {
    std::int64_t every = 0;  ///< 0: only at the end
    int keep = 3;
    std::int64_t keep_every = 0;  ///< 0: none
    bool async = false;
    std::string fallback_dir;  ///< empty: none
    double wait_minutes = 60;
    std::int64_t stripes = 0;  ///< 0: as the folder says
  } checkpoint;
  struct {
    std::int64_t every = 1;
    std::string trace;  ///< steps to trace
    bool tensorboard = false;
  } log;
};

enum class Hardware : std::uint8_t { cpu, gpu };

/// The configuration as ini files, which those know how to write who know the keys by name.
struct ConfigTexts {
  std::string resolved;  ///< of the run
  std::string defaults =
      {};  ///< of one for which nothing was given: what an older run did, that had no such key
};

}  // namespace llampi::train
