// SPDX-License-Identifier: Apache-2.0
// Weights of products in 8 bits: the scales that all ranks use, casts of shards before they are gathered, and transposes for the
// backward pass.
#pragma once

#include <span>
#include <vector>

#include "fsdp/program/emission.hpp"
#include "fsdp/program/schedule.hpp"

namespace llampi::fsdp {

class Fp8Casts {
 public:
  explicit Fp8Casts(Emission& list);

  /// Before the first gather of a step: the scales; and casts of what is not gathered.
  void emit_scales();
  /// Once a step, of units in 8 bits only. A unit that is gathered is cast just before its first gather: no gather waits for the
  /// casts of units after its own.
  void emit_cast(int unit);
  /// For the product that forms the gradient of a layer's input, both operands are read row by row.
  /// @param source per unit: where layers read its parameters
  /// @param arrived what the layer's parameters are still to be waited for: then no more
  void emit_transposes(const ComputeEvent& event, std::span<const BufferId> source,
                       std::vector<int>& arrived);
  /// Of the layer's computation: scales, and transposed weights.
  void add_operands(Action& action, const ComputeEvent& event);
  bool has_weights(int layer) const { return !weights_[layer].empty(); }

 private:
  Emission& list_;
  std::vector<std::vector<int>> weights_;  // per layer: numbers in BufferTable::fp8_weights()
  std::vector<bool> is_cast_;              // per unit: its shard
};

}  // namespace llampi::fsdp
