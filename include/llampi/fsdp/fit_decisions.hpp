// SPDX-License-Identifier: Apache-2.0
// Whether a run fits, and which of its options are chosen by what fits. Nothing here needs a device: other options are compiled
// and compared.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "llampi/fsdp/available_memory.hpp"
#include "llampi/fsdp/compiled_model.hpp"

namespace llampi::fsdp {

/// What is asked: whether this model fits with these options, or with others. What it refers to must outlive it.
struct FitQuestion {
  const model::Model& model;
  EngineOptions options;
  const DeviceMesh& mesh;               ///< of the options' strategy
  const device::OperationSizes& sizes;  ///< the same on all ranks, so that all decide the same
  comm::Backend backend = comm::Backend::mpi;
  /// Whether arenas of this size would fit on the ranks of this mesh, with what else these options take.
  std::function<bool(const ArenaBytes& arena_bytes, const DeviceMesh& mesh, const EngineOptions& with)> fits;

  /// With other options on the same ranks.
  CompiledModel compile(const EngineOptions& with) const;
  bool fits_with(const EngineOptions& with) const;
  /// The tokens of a micro-batch must be a multiple of this: model::fp8_multiple(), or 1 without products in 8 bits.
  std::int64_t multiple_of_tokens() const;
};
/// Whether it fits in this memory.
FitQuestion make_fit_question(const model::Model& model, const EngineOptions& options, const DeviceMesh& mesh,
                              const device::OperationSizes& sizes, const AvailableMemory& memory);

/// The largest `options.batch.attention_room` with which it fits: `most` bytes, or half of it, and so on down to a
/// sixty-fourth; else 0.
std::int64_t fitting_attention_room(const FitQuestion& question, std::int64_t most);

/// What the logits of a micro-batch take in as few chunks as the device can compute, in whole MiB, if it fits with that; else,
/// and if that is no more, device::kLogitsBytes.
std::int64_t fitting_logits_bytes(const FitQuestion& question);

/// All that fitting_checkpointing() chooses among: each recomputes more than the one before it, and needs less memory.
/// @param offloaded what so many blocks save for their feed-forwards goes to host memory before any feed-forward is recomputed;
/// then a level may need more memory than the one before it, for what is on its way
std::vector<BlockCheckpointing> checkpointing_levels(const model::Model& model, int offloaded = 0);

/// The least recomputation with which it fits: norms and activation functions, then feed-forwards, then whole
/// blocks, block by block from the first one on, whose tensors live longest. Whole blocks where nothing fits.
BlockCheckpointing fitting_checkpointing(const FitQuestion& question);

/// What is kept of activations on the device.
struct KeptActivations {
  BlockCheckpointing checkpointing;
  bool offload_residuals = false;
  bool fits = true;
  double added = 0;  ///< AddedSeconds::total()
};
/// As fitting_checkpointing(), with residuals in host memory if they may be there and that adds less, or also with what feed-forwards
/// save, of up to as many blocks as the link can copy during computation.
KeptActivations fitting_activations(FitQuestion question, bool may_offload);

/// Sequences of a micro-batch, of the numbers that divide those of a step: as many as fit, but no more than it
/// takes to have `enough` tokens. Where nothing fits, the fewest that can be computed.
std::int64_t fitting_micro_batch(const FitQuestion& question, std::int64_t enough);

/// The longest sequences with which it fits: a multiple of 128 tokens, `most` at most. `present`, which must fit, where no longer
/// ones do.
std::int64_t fitting_seq_len(std::int64_t present, std::int64_t most,
                             const std::function<bool(std::int64_t seq_len)>& fits);

/// The most room for deterministic attention that is tried: an eighth of the GPU's memory. @param gpu_bytes 0: not known; then as if
/// it were 80 GiB
std::int64_t most_attention_room(std::int64_t gpu_bytes);

/// What of a run's options is decided by what fits.
struct Undecided {
  bool checkpointing = false;
  bool offload = false;  ///< of activations, where checkpointing is
  bool micro_batch = false;
  std::int64_t most_attention_room = 0;  ///< bytes; 0: `options.batch.attention_room` is decided
  bool logits = false;                   ///< `options.batch.logits_bytes`

  bool any() const { return checkpointing || micro_batch || most_attention_room > 0 || logits; }
};
/// The question's options with that decided: recomputation, room for attention and micro-batches of up to 16384 tokens,
/// so that what they add together is least; if recomputation is given, micro-batches as large as fit. Then as much room as
/// still fits, in whole MiB, then the logits of a micro-batch in as few chunks as possible if they still fit.
/// The tokens of a rank's step are a multiple of FitQuestion::multiple_of_tokens().
EngineOptions decide_what_fits(FitQuestion question, const Undecided& undecided);
/// Whether the question's options fit if what is undecided takes as little memory as it can: what decide_what_fits() would find
/// fits then, too, but for what many micro-batches add. Takes four compilations at most, of few micro-batches.
bool can_fit(const FitQuestion& question, const Undecided& undecided);

}  // namespace llampi::fsdp
