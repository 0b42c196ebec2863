// SPDX-License-Identifier: Apache-2.0
// The resolved configuration of a run.
// One member per key of the contract: `section.key` in `section.key`.
// What the keys mean and how their values are written is said in one place:
// the option table (src/cli/option_table.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llampi/checkpoint/weights.hpp"
#include "llampi/comm/binding.hpp"
#include "llampi/core/config_error.hpp"
#include "llampi/core/dtype_words.hpp"
#include "llampi/core/tensor.hpp"
#include "llampi/core/words.hpp"
#include "llampi/device/gpu.hpp"
#include "llampi/fsdp/device_mesh.hpp"
#include "llampi/fsdp/step_options.hpp"
#include "llampi/fsdp/storage.hpp"
#include "llampi/fsdp/wrap.hpp"
#include "llampi/model/fp8_recipe.hpp"
#include "llampi/model/lora.hpp"
#include "llampi/optim/schedule.hpp"

namespace llampi::train {

/// What a run continues from.
struct ResumeFrom {
  enum class Mode : std::uint8_t {
    automatic,  ///< the newest whole checkpoint of the run, if there is one
    never,      ///< nothing; a folder with checkpoints is refused
    file,       ///< `file`, unless the run has newer ones of its own
  };
  Mode mode = Mode::automatic;
  std::string file = {};  ///< a checkpoint

  /// Whether the same command continues a run that has checkpoints of its own.
  bool continues_own() const { return mode != Mode::never; }
  bool operator==(const ResumeFrom&) const = default;
};

/// Whether a step whose like has run before is captured and replayed. automatic: on GPUs.
enum class StepGraph : std::uint8_t { automatic, off };
constexpr auto word_table(StepGraph) {
  return std::to_array<Word<StepGraph>>({{StepGraph::automatic, "auto"}, {StepGraph::off, "off"}});
}

/// When the loss or a gradient is not finite.
struct NotFinitePolicy {
  std::int64_t skip = 0;  ///< so many steps in a row are left out; 0: the first ends the run

  bool operator==(const NotFinitePolicy&) const = default;
};

/// Where the gradients of micro-batches add up.
enum class GradientAccumulation : std::uint8_t {
  sharded,    ///< each is reduced into the sharded gradient: little memory
  unsharded,  ///< accumulated in the unsharded gradient, which is reduced once: little communication
};
constexpr auto word_table(GradientAccumulation) {
  return std::to_array<Word<GradientAccumulation>>(
      {{GradientAccumulation::sharded, "sharded"}, {GradientAccumulation::unsharded, "unsharded"}});
}

/// Of the products of blocks. automatic: in the dtype of the parameters.
enum class ProductDtype : std::uint8_t { automatic, fp8 };
constexpr auto word_table(ProductDtype) {
  return std::to_array<Word<ProductDtype>>({{ProductDtype::automatic, "auto"}, {ProductDtype::fp8, "fp8"}});
}

/// What is kept in host memory.
enum class CpuOffload : std::uint8_t {
  none,
  optimizer,  ///< moments and master parameters
  params,     ///< these and the sharded parameters
};
constexpr auto word_table(CpuOffload) {
  return std::to_array<Word<CpuOffload>>(
      {{CpuOffload::none, "none"}, {CpuOffload::optimizer, "optimizer"}, {CpuOffload::params, "params"}});
}

/// Where AdamW runs on what is offloaded.
enum class OffloadStep : std::uint8_t { device, host };
constexpr auto word_table(OffloadStep) {
  return std::to_array<Word<OffloadStep>>({{OffloadStep::device, "device"}, {OffloadStep::host, "host"}});
}

/// What of activations is in host memory between the forward and the backward pass.
enum class ActivationOffload : std::uint8_t { none, residuals };
constexpr auto word_table(ActivationOffload) {
  return std::to_array<Word<ActivationOffload>>(
      {{ActivationOffload::none, "none"}, {ActivationOffload::residuals, "residuals"}});
}

/// What a checkpoint of a run has.
enum class CheckpointContent : std::uint8_t {
  all,      ///< all that an exact continuation needs
  weights,  ///< no moments, unless the run was told to stop, so that it can continue
};
constexpr auto word_table(CheckpointContent) {
  return std::to_array<Word<CheckpointContent>>(
      {{CheckpointContent::all, "all"}, {CheckpointContent::weights, "weights"}});
}

/// Optimizer steps, from 1.
struct StepRange {
  std::int64_t first = 1, last = 1;

  bool contains(std::int64_t step) const { return first <= step && step <= last; }
  bool operator==(const StepRange&) const = default;
};

/// Where the device's choices come from that the checkpoint's folder has not.
struct TuningMode {
  enum class Mode : std::uint8_t { automatic, off, file };
  Mode mode = Mode::automatic;
  std::string file;  ///< of Mode::file
};

struct Config {
  struct {
    std::string dir = "runs/default";
    device::DeviceChoice device = device::DeviceChoice::automatic;
    std::uint64_t seed = 0;
    ResumeFrom resume;
    bool resume_with_changes = false;
    double max_hours = 0;                    ///< 0: no limit
    double watchdog_seconds = 600;           ///< 0: off
    std::int64_t verify_replicas_every = 0;  ///< steps; 0: never
    bool share_gpu = false;
    bool deterministic = true;
    bool tf32 = false;
    device::GpuAttention attention = device::GpuAttention::automatic;
    std::optional<std::int64_t> attention_workspace;  ///< MiB; none: what fits
    std::optional<std::int64_t> logits_workspace;     ///< MiB; none: what fits
    TuningMode tuning;
    StepGraph cuda_graph = StepGraph::automatic;
    comm::Bind bind = comm::Bind::automatic;  ///< ranks to cores, where the launcher has not
    int threads = 0;                          ///< per rank; 0: OMP_NUM_THREADS, or cores / ranks on the node
  } run;
  struct {
    std::string config;                  ///< config.json, or the folder that holds it
    std::optional<std::string> weights;  ///< file or folder; none: random
  } model;
  struct {
    std::int64_t rank = 0;  ///< 0: no adapters
    double alpha = 16, dropout = 0;
    std::string targets = model::LoraConfig::kDefaultTargets;  ///< regular expression
    model::LoraScaling scaling = model::LoraScaling::standard;
    DType base_dtype = DType::bfloat16;
    std::optional<std::string> weights;  ///< adapters to start from; none: as PEFT initialises them
  } lora;
  struct {
    std::string train;            ///< token files, as data::parse_token_files() reads them
    std::string eval;             ///< likewise, each read once; empty: none
    std::int64_t seq_len = 1024;  ///< tokens
    bool shuffle = true;
    bool document_mask = true;
  } data;
  struct {
    std::int64_t steps = 0;  ///< 0: from epochs; exactly one of the two is positive
    double epochs = 0;
    std::optional<std::int64_t> micro_batch = 1;  ///< sequences per rank and forward pass; none: what fits
    std::int64_t global_batch = 8;                ///< sequences per step over all ranks
    std::int64_t eval_every = 0;                  ///< steps; 0: never
    NotFinitePolicy not_finite;
  } train;
  struct {
    double lr = 3e-4, min_lr = 0;
    optim::Decay schedule = optim::Decay::cosine;
    std::int64_t warmup_steps = 0;
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
    double clip_grad_norm = 1.0;  ///< 0: no clipping
    std::string no_decay;         ///< regular expression; empty: every 1-D tensor
    std::string weight_decays;    ///< EXPRESSION=NUMBER, separated by spaces
    std::string lr_factors;       ///< likewise
    std::string frozen;           ///< regular expression; empty: none
    double loss_scale = 65536;    ///< float16: of the first step
    DType master_dtype = DType::float32, moment_dtype = DType::float32, gradient_dtype = DType::float32;
  } optimizer;
  struct {
    fsdp::Strategy strategy = fsdp::Strategy::full_shard;
    fsdp::WrapPolicy wrap = fsdp::WrapPolicy::transformer;
    std::int64_t wrap_min_params = 100'000'000;
    std::vector<std::string> wrap_modules;  ///< names or expressions
    fsdp::SumOrder sum_order = fsdp::SumOrder::any;
    comm::Reduction reduction = comm::Reduction::tree;  ///< between GPUs
    int nccl_ctas = 0;                                  ///< 0: NCCL decides
    bool nccl_window = false, nccl_copy_engines = false, nccl_split_share = false;
    bool shard_optimizer_over_replicas = false;
    bool all_reduce_stream = false;
    int product_sms = 0;  ///< 0: all that a GPU has
    GradientAccumulation accumulate = GradientAccumulation::sharded;
    std::optional<int> shard_group_size;  ///< ranks; none: those of a node
    fsdp::Prefetch backward_prefetch = fsdp::Prefetch::pre;
    bool forward_prefetch = true;
    int limit_all_gathers = 2;
    std::optional<DType> param_dtype;  ///< none: bfloat16 on GPUs, float32 on CPUs
    ProductDtype product_dtype = ProductDtype::automatic;
    DType fp8_gradient_dtype = DType::float8_e5m2;
    model::Fp8Scales fp8_scales = model::Fp8Scales::tensor;
    DType reduce_dtype = DType::float32;
    CpuOffload cpu_offload = CpuOffload::none;
    OffloadStep offload_step = OffloadStep::device;
    checkpoint::WeightsReading sync_init = checkpoint::WeightsReading::each;
  } fsdp;
  struct {
    std::optional<fsdp::BlockCheckpointing> checkpointing = fsdp::BlockCheckpointing();  ///< none: what fits
    std::optional<ActivationOffload>
        offload;  ///< none: what makes least to recompute, where that is left open
  } activation;
  struct {
    std::int64_t every = 0;  ///< steps; 0: only at the end
    int keep = 3;
    std::int64_t keep_every = 0;  ///< steps; 0: none
    bool async = false;
    std::string fallback_dir;  ///< empty: none
    double wait_minutes = 60;  ///< 0: not at all
    CheckpointContent content = CheckpointContent::all;
    std::optional<DType> state_dtype;  ///< of stored moments; none: optimizer.moment_dtype
    checkpoint::FileIo io = checkpoint::FileIo::direct;
    int writers_per_node = 0;       ///< 0: so many that 256 of the job write
    std::int64_t stripes = 0;       ///< 0: as the folder says
    std::int64_t stripe_bytes = 0;  ///< 0: as the file system says
  } checkpoint;
  struct {
    std::int64_t every = 1;          ///< steps
    std::optional<StepRange> trace;  ///< none: no trace
    bool plan = false;               ///< the table of planned memory, when a run starts
    bool tensorboard = false;
    std::string prometheus;  ///< file; empty: none
  } log;
};

/// The configuration as ini files, and what its keys are called, by those who know the keys by name.
struct ConfigTexts {
  std::string resolved;  ///< of the run
  /// Of a configuration with no keys given: for a key that an older run lacks, the value it used.
  std::string defaults = {};
  ConfigError::Naming name_of = {};  ///< of errors that are logged; empty: the library's own names
};

/// What is kept in host memory. Residuals of `auto` are not: they are decided later.
inline fsdp::Offload offload_of(const Config& c) {
  const bool optimizer = c.fsdp.cpu_offload != CpuOffload::none;
  return {.optimizer = optimizer,
          .params = c.fsdp.cpu_offload == CpuOffload::params,
          .host_step = optimizer && c.fsdp.offload_step == OffloadStep::host,
          .residuals = c.activation.offload == ActivationOffload::residuals};
}

}  // namespace llampi::train
