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
//   checkpointing, offload_residuals, recomputed, waiting, attention_workspace_bytes, logits_workspace_bytes
//       activation.checkpointing and activation.offload, as chosen where they are auto; the extra matrix operations
//       of the first, as a fraction, at most; the time that the second waits for copies, as a fraction of the time of
//       matrix operations, at most; room for dP of deterministic attention on GPUs, and for
//       the logits of a chunk of rows there
//   parameters, trained_parameters
//       elements of the model
//   planned_bytes
//       what the program allocates: all arenas
//   process_bytes
//       kProcessBytes, not in planned_bytes
//   context_bytes, loaded_later_bytes, communicator_bytes
//       what else of a GPU is taken, likewise: measured on one H100 but for the last, an estimate; 0 on CPUs
//   needed_bytes, device_memory_bytes, fits
//       of the device's memory with all of these; what it has and whether that is enough, null if it is not
//       known
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

namespace llampi::plan {

/// About what a process needs beyond the plan: the program and its libraries, MPI's buffers.
inline constexpr std::int64_t kProcessBytes = std::int64_t{64} << 20;

/// What CUDA's context and the libraries take of a GPU when a run has opened and checked it, as measured on
/// one H100 (driver 580, CUDA 13.0). What is loaded later is fsdp::loaded_later_bytes().
inline constexpr std::int64_t kContextBytes = std::int64_t{543} << 20;

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
  comm::Backend backend = comm::Backend::mpi;  ///< of the collectives: nccl for GPUs
  std::int64_t memory_bytes = 0;               ///< of the device, for each rank; 0: not known
  std::string memory_option = {};      ///< "--memory" where that gave it, rather than the device's name
  std::int64_t host_memory_bytes = 0;  ///< of a node, its GPUs' memory not included; 0: not known
  int ranks = 1;
  int ranks_per_node = 1;  ///< the most
  std::vector<int> node_ranks =
      {};           ///< ranks of each node; empty: ranks_per_node, and on the last one the rest
  int threads = 1;  ///< per rank; workspaces depend on it

  int nodes() const {
    return node_ranks.empty() ? (ranks + ranks_per_node - 1) / ranks_per_node
                              : static_cast<int>(node_ranks.size());
  }
  /// Whether all nodes have as many ranks.
  bool even() const {
    return node_ranks.empty()
               ? nodes() == 1 || ranks % ranks_per_node == 0
               : std::ranges::all_of(node_ranks, [&](int n) { return n == node_ranks.front(); });
  }
  std::string device_in_words() const;  ///< "an h100", "a GPU", or "a rank" on CPUs
  std::string memory_in_words() const;  ///< "79.10 GiB", "44.00 GiB (--memory)"
  int most_ranks_on_a_node() const { return ranks < ranks_per_node ? ranks : ranks_per_node; }
  fsdp::AvailableMemory memory() const;
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

  CategoryReport& operator+=(const CategoryReport& other) {
    kept += other.kept;
    peak += other.peak;
    return *this;
  }
};
using CategoryReports = std::array<CategoryReport, fsdp::kCategories>;

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

struct PlanReport {
  Machine machine;
  fsdp::Strategy strategy = fsdp::Strategy::full_shard;
  model::BatchShape batch;
  int micro_batches = 1;
  fsdp::Precision precision;
  /// For the weights of blocks, gathered and used in matrix products in 8 bits; none: they are not.
  std::optional<model::Fp8Scales> fp8 = {};
  int shards = 1;
  int replicas = 1;
  std::string groups;  ///< for programs; `mesh`: for people
  std::string mesh;
  std::int64_t parameters = 0;  ///< elements
  std::int64_t trained_parameters = 0;

  fsdp::BlockCheckpointing checkpointing;  ///< what was chosen for `auto`, as in the next one
  std::int64_t attention_workspace = 0;    ///< bytes that dP of deterministic attention may take
  std::int64_t logits_workspace = 0;       ///< bytes that the logits of a chunk of rows may take; 0 on CPUs
  bool attention_lacks_workspace =
      false;                        ///< that of whole sequences has too little: native kernels compute it
  bool offloads_residuals = false;  ///< likewise
  fsdp::AddedSeconds added;         ///< by both

  std::array<ArenaReport, fsdp::kArenas> arenas{};
  std::string step_plan;                     ///< format_memory() of the step, which a run prints
  std::vector<fsdp::PurposeBytes> purposes;  ///< of the step
  int peak_action = 0;
  std::string peak_description;
  std::int64_t peak_transient = 0;                          ///< bytes
  std::vector<fsdp::PurposeBytes> peak_purposes;            ///< with what is kept
  std::array<CategoryReports, fsdp::kArenas> categories{};  ///< of each arena
  Traffic traffic;
  std::int64_t step_actions = 0;
  std::int64_t evaluation_actions = 0;
  std::vector<UnitReport> units;

  std::int64_t context_bytes = 0;       ///< see kContextBytes
  std::int64_t later_bytes = 0;         ///< see loaded_later_bytes()
  std::int64_t communicator_bytes = 0;  ///< an estimate, see llampi::communicator_bytes()
  std::int64_t needed_bytes = 0;        ///< of the device's memory
  std::int64_t host_needed_bytes = 0;   ///< of a node's host memory, its GPUs' not included; 0 on CPUs

  std::optional<Speed> speed;            ///< none: no seconds are predicted
  std::vector<StrategyTime> times;       ///< with `speed`: of `strategy` and others
  std::vector<double> action_seconds;    ///< with `speed`: of the actions of the step, each by itself
  std::optional<Prediction> prediction;  ///< with the figures of a machine

  /// 0: not known. See fsdp::fitting_seq_len().
  std::int64_t longest_seq_len = 0;
  std::int64_t max_positions = 0;  ///< of the model

  /// Of a step, over all ranks.
  std::int64_t global_batch() const { return batch.sequences * micro_batches * machine.ranks; }
  std::int64_t tokens() const { return batch.tokens() * micro_batches * machine.ranks; }
  /// Over all arenas.
  ArenaReport total() const;
  CategoryReport total(fsdp::Category category) const;
  bool on_gpu() const { return machine.backend == comm::Backend::nccl; }
  bool knows_memory() const { return machine.memory_bytes > 0; }
  bool knows_host_memory() const { return machine.host_memory_bytes > 0; }
  /// True where the memory is not known.
  bool fits_on_device() const { return machine.memory().device_holds(needed_bytes); }
  bool fits_on_host() const { return machine.memory().host_holds(host_needed_bytes); }
  bool fits() const { return fits_on_device() && fits_on_host(); }
};

/// @param compiled with a training step
PlanReport make_report(const model::Model& model, const fsdp::EngineOptions& options,
                       const fsdp::DeviceMesh& mesh, const fsdp::CompiledModel& compiled,
                       const Machine& machine);

/// Whether other options would fit where the report is of. All must outlive it.
fsdp::FitQuestion fit_question(const PlanReport& report, const model::Model& model,
                               const fsdp::EngineOptions& options, const fsdp::DeviceMesh& mesh,
                               const device::OperationSizes& sizes);

/// One sentence for a plan that does not fit: what it needs, the largest buffers, what would make it fit.
ConfigError does_not_fit(const PlanReport& report, const fsdp::CompiledModel& compiled,
                         const fsdp::FitQuestion& question);

/// Tables for people: the job, whether it fits, its memory, and its time.
std::string format_report(const PlanReport& report);
/// More of them: dtypes, memory by purpose and arena, the peak of a step, what is communicated.
std::string format_details(const PlanReport& report);

/// One line of JSON without its end.
std::string to_json(const PlanReport& report);
/// Likewise, with the actions of the step and their buffers.
std::string to_json(const PlanReport& report, const fsdp::CompiledModel& compiled);
std::string to_json(const std::vector<UnitReport>& units);

}  // namespace llampi::plan
