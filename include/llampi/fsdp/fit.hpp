// SPDX-License-Identifier: Apache-2.0
// What to tell the user if a run does not fit: what takes the memory, and what would make it fit. Nothing
// here needs a device: other options are compiled and compared.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llampi/core/config_error.hpp"
#include "llampi/fsdp/compiled_model.hpp"

namespace llampi::fsdp {

/// What CUDA loads on a rank's GPU after a run has opened and checked it: kernels of the step's own shapes,
/// and the libraries' memory for them. 2 to 180 MiB on one H100 (driver 580, CUDA 13.0); 0 on CPUs.
constexpr std::int64_t loaded_later_bytes(comm::Backend backend) {
  return backend == comm::Backend::nccl ? std::int64_t{180} << 20 : 0;
}

/// Bytes of device memory that a rank takes after its device has been opened: the arena, buffers that
/// communicators allocate in their first collectives, kernels that are loaded when they are first used.
/// @param one_memory the device computes in host memory, where the host's arena is too
std::int64_t needed_bytes(comm::Backend backend, const ArenaBytes& arena_bytes, const DeviceMesh& groups,
                          comm::Reduction reduction, bool one_memory);

/// What a rank can have.
struct AvailableMemory {
  comm::Backend backend = comm::Backend::mpi;
  std::int64_t on_device = 0, on_host = 0;            ///< bytes
  comm::Reduction reduction = comm::Reduction::tree;  ///< as for needed_bytes(), and so below
  bool one_memory = false;

  bool device_holds(const ArenaBytes& arena_bytes, const DeviceMesh& groups) const {
    return needed_bytes(backend, arena_bytes, groups, reduction, one_memory) <= on_device;
  }
  bool host_holds(const ArenaBytes& arena_bytes) const { return one_memory || arena_bytes[1] <= on_host; }
  bool holds(const ArenaBytes& arena_bytes, const DeviceMesh& groups) const {
    return device_holds(arena_bytes, groups) && host_holds(arena_bytes);
  }
};

struct FitQuestion {
  const model::Model& model;
  const EngineOptions& options;
  const DeviceMesh& groups;
  const device::OperationSizes& sizes;
  comm::Backend backend = comm::Backend::mpi;
  /// Whether arenas of this size would fit on ranks in these groups.
  std::function<bool(const std::array<std::int64_t, kArenas>& arena_bytes, const DeviceMesh& groups)> fits;

  /// With other options on the same ranks.
  CompiledModel compile(const EngineOptions& with) const;
  bool fits_with(const EngineOptions& with) const;
};

/// An option of EngineOptions with another value: "batch.sequences", "4".
struct OptionValue {
  std::string field, value;
};

/// What would make a run fit.
struct FittingRun {
  std::vector<OptionValue> changes;                 ///< all of them together; empty: more ranks are enough
  int ranks = 1;                                    ///< on so many, with no more of them on a node
  EngineOptions options;                            ///< with the changes
  std::array<std::int64_t, kArenas> arena_bytes{};  ///< of each rank then
};

/// The first of these that fits. What changes no numbers but for rounding comes first: a smaller micro-batch,
/// fewer and smaller units that are unsharded at the same time, checkpointing of activations, offload of the optimizer, of the parameters, of residuals, full_shard, and as
/// many of them together as are needed. Then a frozen base in 8 bits, then the state in bfloat16, by itself and with all of those: the moments,
/// the master, the gradients (with what they are reduced in). Then up to 64 times as many ranks. None if none
/// does.
std::optional<FittingRun> find_fit(const FitQuestion& question);

/// The largest `options.batch.dp_room` with which it fits: `most` bytes, or half of it, and so on down to a
/// sixty-fourth; else 0.
std::int64_t fitting_dp_room(const FitQuestion& question, std::int64_t most);

/// What the logits of a micro-batch take in as few chunks as the device can compute, in whole MiB, if it fits with that; else,
/// and if that is no more, device::kLogitsBytes.
std::int64_t fitting_logits_bytes(const FitQuestion& question);

/// All that fitting_checkpointing() chooses among: each recomputes more than the one before it, and needs less memory.
std::vector<BlockCheckpointing> checkpointing_levels(const model::Model& model);

/// The least recomputation with which it fits: norms and activation functions, then feed-forwards, then whole
/// blocks, block by block from the first one on, whose tensors live longest. Whole blocks where nothing fits.
BlockCheckpointing fitting_checkpointing(const FitQuestion& question);

/// Of a link between a GPU and its host, in each direction: measured on one H100.
inline constexpr double kHostBytesPerSecond = 43e9;

/// Operations of matrices (a multiplication and an addition are two) of a layer's forward pass over so many tokens, on one rank.
/// Attention is left out.
double forward_operations(const model::Model& model, const CompiledModel& compiled, int layer, double tokens);

/// Additional work of a step that saves memory and does not change the result, in operations of matrices (a multiplication
/// and an addition are two), of all micro-batches on one rank. What takes time otherwise counts as the operations that an H100
/// does meanwhile, 685 TFLOP/s.
struct AddedOperations {
  double needed = 0;      ///< of the step itself, without attention: forward, and twice as many backward
  double recomputed = 0;  ///< of matrices, at most
  double attention = 0;   ///< of attention, in blocks that are recomputed as a whole
  /// Reads and writes of the device's memory: by what is recomputed without products, and by copies of residuals. 3 TB/s.
  double memory = 0;
  /// The time that computation waits for residuals (Offload), which are copied in parallel with it. The link has 43 GB/s.
  double waiting = 0;

  double recomputed_part() const { return needed > 0 ? recomputed / needed : 0; }
  double waiting_part() const { return needed > 0 ? waiting / needed : 0; }
  double total() const { return recomputed + attention + memory + waiting; }
};
AddedOperations added_operations(const model::Model& model, const EngineOptions& options,
                                 const CompiledModel& compiled);

/// What is kept of activations on the device.
struct KeptActivations {
  BlockCheckpointing checkpointing;
  bool offload_residuals = false;
  bool fits = true;
  double added = 0;  ///< AddedOperations::total()
};
/// As fitting_checkpointing(), with residuals in host memory if they may be there and that adds less.
KeptActivations fitting_activations(const FitQuestion& question, bool may_offload_residuals);

/// What deterministic gradients of attention in pieces (device::attention_pieces()), or by native kernels where these have no
/// room, take longer than whole ones: as AddedOperations count time. By figures of an H100 (docs/benchmarks.md).
double operations_of_pieces(const EngineOptions& options, const CompiledModel& compiled);

/// What a micro-batch more takes, as AddedOperations count time: gradients are read and written to be added to; where only shards
/// are, the others are written. Products hide some of it; communication is not counted.
double operations_of_accumulation(const EngineOptions& options, const CompiledModel& compiled);

/// Sequences of a micro-batch, of the numbers that divide those of a step: as many as fit, but no more than it
/// takes to have `enough` tokens. 1 where nothing fits.
std::int64_t fitting_micro_batch(const FitQuestion& question, std::int64_t enough);

/// The longest sequences with which it fits, all else as it is: a multiple of 128 tokens, `most` at most. The question's own
/// length must fit, and is returned where no longer one does.
std::int64_t fitting_seq_len(const FitQuestion& question, std::int64_t most);

/// What of a run's options is decided by what fits.
struct Undecided {
  bool checkpointing = false;
  bool offload_residuals = false;  ///< where checkpointing is
  bool micro_batch = false;
  std::int64_t most_dp_room = 0;  ///< bytes; 0: `options.batch.dp_room` is decided
  bool logits = false;            ///< `options.batch.logits_bytes`
};
/// Decides it, in the options that the question is of: recomputation, room for attention and micro-batches of up to 16384 tokens,
/// so that what they add together is least; if recomputation is given, micro-batches as large as fit. Then as much room as
/// still fits, in whole MiB, then the logits of a micro-batch in as few chunks as possible if they still fit.
void decide_what_fits(EngineOptions& options, const FitQuestion& question, const Undecided& undecided);

/// "needs ...; largest buffers: saved activation 1.50 MiB, ...; it would fit with checkpointing = full".
/// @param lack "needs 2 GiB per rank, but a rank has 1 GiB"
/// @param arena whose three largest buffers at the peak of a step are named; none: both
ConfigError does_not_fit(const std::string& lack, const CompiledModel& compiled, std::optional<Arena> arena,
                         const FitQuestion& question);

}  // namespace llampi::fsdp
