// SPDX-License-Identifier: Apache-2.0
// Trains a model: runs the compiled step on this rank's devices, and has its state.
//
// What a step does is in its program (program.hpp); memory in which it runs, and code for each of its
// operations, are in src/fsdp/runtime, state that is loaded and saved in src/fsdp/state.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "llampi/device/device.hpp"
#include "llampi/device/host_batch.hpp"
#include "llampi/fsdp/arenas.hpp"
#include "llampi/fsdp/compiled_model.hpp"
#include "llampi/fsdp/graph_counts.hpp"
#include "llampi/fsdp/observer.hpp"
#include "llampi/fsdp/state_piece.hpp"
#include "llampi/health/flight_record.hpp"

namespace llampi::fsdp {

struct StepInputs {
  double learning_rate = 0;
  std::int64_t optimizer_step = 1;  ///< updates so far, this one included: the t of the bias corrections
  std::int64_t valid_labels = 0;    ///< of the global batch; at least 1
  double loss_scale = 1;            ///< for float16: gradients are this much larger while they are float16
  /// The most of any micro-batch of any rank: all ranks issue operations for as many, so that they capture and replay graphs
  /// together. One rank alone, and CPUs, need none.
  device::BatchCounts counts = {};
};

struct StepResult {
  double loss_sum = 0;                 ///< of this rank
  std::vector<double> loss_sums = {};  ///< of its micro-batches
  double grad_norm = 0;                ///< global, before clipping
  device::Fp8Counts fp8 = {};          ///< of this rank's casts to 8 bits
  bool aborted = false;                ///< see Engine::ask_before_micro_batches()
};

class Engine {
 public:
  /// Collective. Allocates the arenas; parameters and moments are zero. `model`, the devices and `world` must
  /// outlive it.
  /// @param host computes in host memory (Offload::host_step); `device` itself if that does
  /// @throws UserError if the arenas do not fit
  Engine(const model::Model& model, device::Device& device, device::Device& host, comm::World& world,
         const EngineOptions& options);
  Engine(const model::Model& model, device::Device& device, comm::World& world, const EngineOptions& options)
      : Engine(model, device, device, world, options) {}
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// A step and an evaluation of random numbers, after which all state is zero as it was at first: libraries
  /// load and choose what they compute with, communicators connect. Collective.
  /// @param few_labels the same once more, in two micro-batches at most, with each smaller number of labels that the head has products
  /// of its own for
  void rehearse(bool few_labels = false);
  /// For runs whose micro-batches may have documents that are shorter than a sequence: what the device compiles
  /// for any number of documents of any lengths is compiled now, and in no step. Computes nothing.
  void prepare_for_documents();
  /// One optimizer step over this rank's micro-batches. Collective.
  StepResult step(std::span<const device::HostBatch> micro_batches, const StepInputs& inputs);
  /// Sum of the token losses of one micro-batch of this rank. Collective: every rank calls it equally often.
  double evaluate(const device::HostBatch& batch);
  /// Logits [V] of the token at `row` of the micro-batch, in float64. With a KV cache, keys of later tokens are not kept. Collective.
  std::vector<double> logits(const device::HostBatch& batch, std::int64_t row);

  /// Initial values by Philox, keyed by (seed, name, element): the same for every world size and strategy.
  void initialise(std::uint64_t seed);
  /// The same of adapters (model::Parameter::adapter) alone.
  void initialise_adapters(std::uint64_t seed);
  /// What this rank must be given, which replicas need to be given too, unless they divide the optimizer state. The caller
  /// may write it until the next step or evaluation, in which shards follow: so all ranks ask, or none.
  std::vector<StatePiece> pieces_to_load();
  /// What this rank holds, with what other ranks hold as well; where replicas divide the optimizer state, of the parameters
  /// only, as they are gathered: all ranks ask, or none. To be read only.
  std::vector<StatePiece> pieces_held() const;
  /// What this rank writes into a checkpoint: every element of the model is in exactly one rank's pieces, but for what
  /// EngineOptions::saves_frozen leaves out.
  std::vector<StatePiece> pieces_to_save() const;
  /// A copy of pieces_to_save() in host memory, which steps leave unchanged until the next snapshot. A GPU may still be
  /// copying when this returns. Steps can follow at once: only the update waits for the copies. Call
  /// wait_for_snapshot() before reading them. Needs EngineOptions::snapshot.
  std::vector<StatePiece> snapshot();
  /// Until the last snapshot is complete. Any thread may wait, as long as no other snapshot is taken.
  void wait_for_snapshot() const;

  /// All ranks observe a step, or none: one that is observed is not a replay.
  void observe(Observer observer);
  /// Asked in each step before each micro-batch but the first, unless the step is replayed; all ranks must
  /// give the same answer. True: the step is aborted, and parameters and moments are as if it had not begun.
  void ask_before_micro_batches(std::function<bool()> should_abort);
  /// Where the engine notes what it does, from now on; it must live as long. Without this call the engine has
  /// one of its own.
  void keep_record(health::FlightRecord& record);
  health::FlightRecord& record();

  const model::Model& model() const;
  const EngineOptions& options() const;
  const DeviceMesh& mesh() const;
  const CompiledModel& compiled() const;
  const Arenas& memory() const;  ///< in which the programs of compiled() run: to be looked at
  /// After a step whose gradient norm is not finite: the first unit, in the order of the units, of whose
  /// gradient this rank's shard holds a number that is not finite; -1: none.
  int unit_of_bad_gradient();
  GraphCounts graph_counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llampi::fsdp
