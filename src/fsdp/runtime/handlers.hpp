// SPDX-License-Identifier: Apache-2.0
// Handlers: how an action is carried out, given its operands as tensors. One for each operation; nothing
// else in the runtime knows what an operation does.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "fsdp/fp8_weights.hpp"
#include "llampi/comm/forward.hpp"
#include "llampi/device/device.hpp"
#include "llampi/device/length_classes.hpp"
#include "llampi/fsdp/compiled_model.hpp"
#include "llampi/fsdp/program.hpp"
#include "llampi/health/flight_record.hpp"

namespace llampi::fsdp {

using device::BatchCounts;

/// A micro-batch where it lies in host memory.
struct PlacedInput {
  std::span<const std::int32_t> values;  ///< as in HostBatch
  BatchCounts counts;
  std::int64_t kv_len;
};

/// What differs from one run of a program to the next.
struct RunInputs {
  std::span<const PlacedInput> micro_batches;
  std::int64_t logits_row = -1;  ///< evaluation: logits of this row instead of the loss; -1: the loss
};

/// An action that is being issued.
struct Call {
  const Action& action;
  std::span<const Tensor> tensors;  ///< per operand; empty where that has no buffer
  const RunInputs& run;
  health::FlightRecord* record;           ///< null while a step is captured: what is captured does not happen
  health::FlightOperation as_noted = {};  ///< how the record calls this action
  std::uint64_t sequence = 0;             ///< of announce()

  /// The operand of this slot; empty if there is none.
  Tensor find(Slot slot) const;
  /// @throws Error if there is none
  Tensor operator[](Slot slot) const;
  /// All of this slot, in order.
  std::span<const Tensor> all(Slot slot) const;
  Access access(Slot slot) const;
  /// Notes in the record that this rank takes part in something between ranks: before it does.
  void announce();
};

/// Issues what an action does on its stream. What is between ranks returns its Work, which the executor waits
/// for where somebody depends on it; anything else is done when the stream is, and returns nothing.
using ActionHandler = std::function<std::unique_ptr<comm::Work>(Call& call)>;

/// The handler of what is done when its stream is.
ActionHandler on_its_stream(std::function<void(Call& call)> issue);

class HandlerTable {
 public:
  void add(Op op, ActionHandler handler);
  /// @throws Error if there is none
  const ActionHandler& operator[](Op op) const;

 private:
  std::map<Op, ActionHandler> handlers_;
};

/// What handlers work with. All must outlive them.
struct RankContext {
  const model::Model& model;
  const EngineOptions& options;
  const std::vector<Unit>& units;
  device::Device& device;
  device::Device& host;   ///< computes in host memory
  comm::Group& shards;    ///< ranks among which a unit is sharded
  comm::Group& replicas;  ///< ranks that hold the same shard
  /// Per unit: the real elements of what this rank updates, its shard or with Unit::state_parts a part of it.
  std::vector<std::vector<device::UpdateRange>> ranges;
  std::vector<Fp8WeightPlace> fp8_weights;
  /// Per unit: what of weights in 8 bits lies in this rank's shard.
  std::vector<std::vector<Fp8Piece>> fp8_pieces;
  /// Called before an update is issued on this stream: it overwrites state.
  std::function<void(device::Stream)> before_update;

  /// The ranks that take part in an action. @throws Error if this one alone does
  comm::Group& group_of(const Action& action) const;
};

void add_compute(HandlerTable& handlers, const RankContext& rank);
void add_collectives(HandlerTable& handlers, const RankContext& rank);
void add_copies(HandlerTable& handlers, const RankContext& rank);
void add_update(HandlerTable& handlers, const RankContext& rank);
void add_fp8(HandlerTable& handlers, const RankContext& rank);

/// values = op over the ranks of the action, in place.
std::unique_ptr<comm::Work> all_reduce_values(const RankContext& rank, Call& call, Tensor values,
                                              comm::ReduceOp op);

struct BoundProgram;
/// Lets the device prepare (device::Operations::prepare()) all that the layers of the program issue for so many
/// documents.
void prepare_layers(const RankContext& rank, const BoundProgram& bound, const BatchCounts& counts);

/// All of a training step.
HandlerTable all_handlers(const RankContext& rank);

}  // namespace llampi::fsdp
