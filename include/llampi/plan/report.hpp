// SPDX-License-Identifier: Apache-2.0
// What a training step will need and move, read off its compiled form: no rank and no device is involved.
//
// to_json() gives one object. Sizes are integers, in bytes where the key contains "bytes"; per rank, and the same on
// every rank:
//
//   device, ranks, ranks_per_node, nodes, node_ranks, threads_per_rank
//       what was asked for; ranks_per_node is the most of any node, node_ranks the ranks of each where they were given one by one, else null
//   strategy, shard_ranks, replicas, groups
//       ranks of a shard group, number of such groups, both written out for people
//   micro_batch, seq_len, micro_batches, global_batch
//       sequences, tokens, micro-batches of a step; sequences of a step over all ranks
//   param_dtype, frozen_dtype, frozen_matrix_dtype (in blocks: "int8", or frozen_dtype), compute_dtype, product_dtype ("fp8", or
//   compute_dtype), fp8_scales ("tensor" or "block"; null without FP8), reduce_dtype, gradient_dtype, master_dtype, moment_dtype
//   checkpointing, offload_residuals, recomputed, waiting, attention_workspace_bytes, attention_lacks_workspace, logits_workspace_bytes
//       activation.checkpointing and activation.offload, as chosen where they are auto; the extra matrix operations
//       of the first, as a fraction, at most; the time that the second waits for copies, as a fraction of the time of
//       matrix operations, at most; room for dP of deterministic attention on GPUs, whether
//       there is too little for cuDNN, so that native kernels compute it, and room for the logits of a chunk of rows there
//   parameters, trained_parameters
//       elements of the model
//   planned_bytes
//       what the program allocates: all arenas
//   process_bytes
//       kProcessBytes, not in planned_bytes
//   context_bytes, loaded_later_bytes, graph_bytes, communicator_bytes
//       what else of a GPU is taken, likewise: the first two as measured on one H100; CUDA graphs of steps and communicators are
//       estimates; 0 on CPUs
//   needed_bytes, device_memory_bytes, fits
//       of the device's memory with all of these; what it has and whether that is enough, null if it is not
//       known
//   fits_on_device, fits_on_host, max_positions
//       `fits` in its two parts, each null if that memory is not known; the model's max_position_embeddings
//   longest_seq_len
//       tokens of the longest sequences that fit, all else as it is: a multiple of 128, or seq_len; null where memory is not
//       known or the plan does not fit
//   host_needed_bytes, host_memory_bytes
//       of a node with GPUs: what its ranks need of the host's memory, what it has (null if not given);
//       `fits` is of both
//   arenas {device, host} {planned_bytes, kept_bytes, step_bytes, evaluation_bytes}
//       planned is the larger of the step's and the evaluation's; both contain what is kept
//   roles [{role, arena, kept, buffers, bytes}]
//       of a step; those that are not kept share memory
//   busiest {action, actions, description, transient_bytes, roles}
//       the action at which buffers that are not kept hold most, the number of actions, what it does, what
//       they hold, and all that is alive then
//   categories {parameters, gradients, optimizer, activations, other} {kept_bytes, busiest_bytes}
//       busiest contains what is kept
//   traffic {gathered_bytes, reduced_bytes, replica_reduced_bytes, replica_gathered_bytes, host_to_device_bytes,
//            device_to_host_bytes}
//       see Traffic
//   predicted {flops_per_second, in_node_bytes_per_second, between_nodes_bytes_per_second, strategies [{strategy, fits,
//              step_seconds, compute_seconds, waiting_seconds, tokens_per_second}], impossible [{strategy, reason}]}
//       of each strategy that these ranks can have, all else as it is; flops_per_second is null with --machine; the bandwidths are of a rank, in each direction, tokens
//       of all ranks; fits is null where memory is not known. null where no speeds were given
//   step_time {machine, step_seconds, product_seconds, attention_seconds, memory_bound_seconds, kernel_seconds,
//              recomputation_seconds, optimizer_seconds, host_optimizer_seconds, slowdown_seconds, exposed_seconds, tokens_per_second, mfu, budget_tokens, budget_days,
//              budget_device_hours}
//       of the configured strategy, with --machine; see format_report(). exposed_seconds: while a rank computes nothing. slowdown_seconds: by which what it computes is
//       slowed by communication, whose messages and sums the same device works on. mfu is
//       null where the peak of the device is not known, the budget's values without --tokens. null where no machine was given
//   step_actions, evaluation_actions
//   units [{name, parameters, elements, float32_bytes, param_dtype_bytes, shard_elements, padding, frozen}]
//       see UnitReport
//
// and, of `llampi plan --actions`, the step's program:
//
//   actions [{op, stream, waits, operands [{buffer, slot, access, bytes}], ...}]
//       in order, their numbers count from 0; `waits` are numbers of actions, `buffer` an index into buffers,
//       `access` one of read, write, both, reserve. `seconds`, of the action alone, where speeds were given. As far as they
//       apply: layer, layer_name, unit, unit_name, micro_batch, pass, payload, ranks, bytes
//   buffers [{purpose, name, arena, dtype, rows, cols, bytes, kept, offset, live [[first, last]]}]
//       `live` are actions during which a buffer that is not kept holds something
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llampi/core/config_error.hpp"
#include "llampi/fsdp/added_work.hpp"
#include "llampi/fsdp/available_memory.hpp"
#include "llampi/fsdp/compiled_model.hpp"
#include "llampi/fsdp/fit_decisions.hpp"
#include "llampi/fsdp/memory_report.hpp"
#include "llampi/model/fp8_recipe.hpp"
#include "llampi/plan/step_time.hpp"
#include "llampi/train/compiled_run.hpp"

namespace llampi::plan {

/// About what a process needs beyond the plan: the program and its libraries, MPI's buffers.
inline constexpr std::int64_t kProcessBytes = std::int64_t{64} << 20;

/// What CUDA's context and the libraries take of a GPU when a run has opened and checked it, as measured on
/// one H100 (driver 580, CUDA 13.0); 0 on CPUs. What is loaded later is fsdp::loaded_later_bytes().
constexpr std::int64_t context_bytes(comm::Backend backend) {
  return backend == comm::Backend::nccl ? std::int64_t{543} << 20 : 0;
}

/// The time of a step on a machine whose figures are known.
struct Prediction {
  std::string machine;
  ComputeParts parts;
  StepTime time;
  double tokens = 0;         ///< of a step, over all ranks
  double step_flops = 0;     ///< of a step and rank, as MFU counts them: fsdp::flops_per_token()
  double peak_flops = 0;     ///< of a rank's device; 0: not known
  double budget_tokens = 0;  ///< of a whole run; 0: not asked for
  int ranks = 1;

  double tokens_per_second() const { return tokens / time.seconds; }
  /// Of what is computed, because the device works on messages and their sums at the same time.
  double slowdown_seconds() const {
    const double seconds = time.compute_seconds - parts.sum();
    return seconds > 1e-9 * time.seconds ? seconds : 0;
  }
  double mfu() const { return step_flops / time.seconds / peak_flops; }
  double budget_seconds() const { return budget_tokens / tokens_per_second(); }
  double budget_device_hours() const { return budget_seconds() / 3600 * ranks; }
};

/// Where a step would run.
struct Machine {
  std::string device = "cpu";
  std::int64_t memory_bytes = 0;       ///< of the device, for each rank; 0: not known
  std::string memory_option = {};      ///< "--memory" where that gave it, rather than the device's name
  std::int64_t host_memory_bytes = 0;  ///< of a node, its GPUs' memory not included; 0: not known
  train::RunShape shape = {};          ///< its ranks, resolved; its memory is memory()

  int nodes() const {
    return shape.node_ranks.empty() ? (shape.ranks + shape.ranks_per_node - 1) / shape.ranks_per_node
                                    : static_cast<int>(shape.node_ranks.size());
  }
  /// Whether all nodes have as many ranks.
  bool even() const {
    const auto& ranks = shape.node_ranks;
    return ranks.empty() ? nodes() == 1 || shape.ranks % shape.ranks_per_node == 0
                         : std::ranges::all_of(ranks, [&](int n) { return n == ranks.front(); });
  }
  bool on_gpu() const { return shape.on_gpu(); }
  bool knows_memory() const { return memory_bytes > 0; }
  bool knows_host_memory() const { return host_memory_bytes > 0; }
  std::string device_in_words() const;  ///< "an h100", "a GPU", or "a rank" on CPUs
  std::string memory_in_words() const;  ///< "79.10 GiB", "44.00 GiB (--memory)"
  int most_ranks_on_a_node() const { return std::min(shape.ranks, shape.ranks_per_node); }
  /// With what processes take of it, which do not run yet.
  fsdp::AvailableMemory memory() const;
};

/// What is planned: a step, and where it would run.
struct Job {
  Machine machine;
  fsdp::EngineOptions options;  ///< with what was chosen for `auto`
  fsdp::DeviceMesh mesh;

  /// Of a step, over all ranks.
  std::int64_t global_batch() const {
    return options.batch.sequences * options.micro_batches * machine.shape.ranks;
  }
  std::int64_t tokens() const { return options.batch.tokens() * options.micro_batches * machine.shape.ranks; }
  /// Bytes that the logits of a chunk of rows may take; 0 on CPUs.
  std::int64_t logits_workspace() const { return machine.on_gpu() ? options.batch.logits_bytes : 0; }
};

/// What the options that save memory cost.
struct ChoicesReport {
  fsdp::AddedSeconds added;  ///< by recomputation and residuals in host memory
  /// That of whole sequences has too little: native kernels compute it.
  bool attention_lacks_workspace = false;
};

/// What a rank needs of the machine's memory, and whether it has that: true where that is not known.
struct FitReport {
  std::int64_t communicator_bytes = 0;  ///< an estimate, see fsdp::communicator_bytes()
  std::int64_t graph_bytes = 0;         ///< an estimate, see fsdp::graph_bytes()
  std::int64_t needed_bytes = 0;        ///< of the device's memory, all of it
  std::int64_t host_needed_bytes = 0;   ///< of a node's host memory, its GPUs' not included; 0 on CPUs
  bool on_device = true, on_host = true;
  std::int64_t longest_seq_len = 0;  ///< fsdp::fitting_seq_len(); 0: not known
  std::int64_t max_positions = 0;    ///< of the model

  bool fits() const { return on_device && on_host; }
};

struct ArenaReport {
  std::int64_t kept = 0;        ///< persistent buffers
  std::int64_t step = 0;        ///< with what is kept
  std::int64_t evaluation = 0;  ///< likewise
  std::int64_t planned = 0;     ///< what a rank allocates: the larger of the two
};

struct CategoryReport {
  std::int64_t kept = 0;
  std::int64_t peak = 0;  ///< with what is kept
};

/// The moment of a step at which buffers that are not kept hold most.
struct PeakReport {
  int action = 0;
  std::string description;
  std::vector<fsdp::PurposeBytes> purposes;  ///< what is alive then, with what is kept

  std::int64_t transient_bytes() const;
};

/// The arenas of a rank, and what is in them.
struct MemoryReport {
  std::array<ArenaReport, fsdp::kArenas> arenas{};
  std::vector<fsdp::PurposeBytes> purposes;  ///< of the step
  PeakReport peak;

  /// @param arena none: over all
  ArenaReport total(std::optional<fsdp::Arena> arena = {}) const;
  CategoryReport total(fsdp::Category category, std::optional<fsdp::Arena> arena = {}) const;
};

/// Bytes that the operations of a step cover, summed. What a rank sends and receives is less, or more:
/// - gathered: whole flat buffers, as they are after the all-gather. Of n ranks each receives (n-1)/n of it.
/// - reduced: whole flat gradients, as they are before the reduce-scatter. Each rank sends (n-1)/n of it.
/// - replica_reduced: gradients that are all-reduced over m replicas. Each rank sends 2 (m-1)/m of it; (m-1)/m where
///   replicas divide the optimizer state, as a reduce-scatter does.
/// - replica_gathered: shards that are gathered over m replicas after their parts were updated. Each rank sends (m-1)/m.
/// - host_to_device, device_to_host: what is copied.
/// Not counted: the scalars of the gradient norm and of the loss.
struct Traffic {
  std::int64_t gathered = 0;
  std::int64_t reduced = 0;
  std::int64_t replica_reduced = 0;
  std::int64_t replica_gathered = 0;
  std::int64_t host_to_device = 0;
  std::int64_t device_to_host = 0;
};

struct UnitReport {
  std::string name;
  std::vector<std::string> parameters;
  std::int64_t elements = 0;        ///< without padding
  std::int64_t float32_bytes = 0;   ///< of the elements
  std::int64_t param_bytes = 0;     ///< likewise, in the dtype that is gathered
  std::int64_t shard_elements = 0;  ///< with padding
  std::int64_t padding = 0;         ///< elements, in all shards together
  bool frozen = false;
};
std::vector<UnitReport> report_units(const model::Model& model, const std::vector<fsdp::Unit>& units,
                                     const fsdp::Precision& precision);

/// The parameters of a model.
struct ModelReport {
  std::vector<UnitReport> units;
  /// For the weights of blocks, gathered and used in matrix products in 8 bits; none: they are not.
  std::optional<model::Fp8Scales> fp8 = {};

  std::int64_t parameters() const;  ///< elements
  std::int64_t trained_parameters() const;
};

/// How long a step would take.
struct TimeReport {
  std::optional<Speed> speed;            ///< none: no seconds are predicted
  std::vector<StrategyTime> strategies;  ///< with `speed`: the job's, and others
  std::vector<double> action_seconds;    ///< with `speed`: of the actions of the step, each by itself
  std::optional<Prediction> prediction;  ///< with the figures of a machine
};

struct PlanReport {
  Job job;
  ModelReport model;
  ChoicesReport choices;
  FitReport fit;
  MemoryReport memory;
  Traffic traffic;
  TimeReport time;
};

/// Without times, the longest sequences and whether attention lacks workspace, which are the caller's to find.
/// @param compiled with a training step, of the job
PlanReport make_report(const model::Model& model, const Job& job, const fsdp::CompiledModel& compiled);

/// Whether other options would fit where the job runs. All must outlive it.
fsdp::FitQuestion fit_question(const Job& job, const model::Model& model,
                               const device::OperationSizes& sizes);

/// One sentence for a plan that does not fit: what it needs, the largest buffers, what would make it fit.
ConfigError does_not_fit(const Machine& machine, const FitReport& fit, const fsdp::CompiledModel& compiled,
                         const fsdp::FitQuestion& question);

/// Tables for people: the job, whether it fits, its memory, and its time.
std::string format_report(const PlanReport& report);
/// More of them: dtypes, memory by purpose and arena, the peak of a step, what is communicated.
std::string format_details(const PlanReport& report, const fsdp::CompiledModel& compiled);

/// One line of JSON without its end.
std::string to_json(const PlanReport& report, const fsdp::CompiledModel& compiled);
/// Likewise, with the actions of the step and their buffers.
std::string to_json_with_actions(const PlanReport& report, const fsdp::CompiledModel& compiled);
std::string to_json(const std::vector<UnitReport>& units);

}  // namespace llampi::plan
