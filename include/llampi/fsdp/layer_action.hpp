// SPDX-License-Identifier: Apache-2.0
// An action of a layer with its operands as tensors. What carries it out and what counts its work give the layer the same.
#pragma once

#include <cstdint>
#include <span>

#include "llampi/device/device.hpp"
#include "llampi/fsdp/program.hpp"
#include "llampi/model/model.hpp"
#include "llampi/optim/adamw.hpp"

namespace llampi::fsdp {

/// Those of `tensors` whose operands have this slot, in order. @param tensors per operand of the action
std::span<const Tensor> tensors_of(const Action& action, std::span<const Tensor> tensors, Slot slot);

struct LayerAction {
  const Action& action;             ///< forward, recompute or backward
  std::span<const Tensor> tensors;  ///< per operand; empty where that has no buffer
  const model::BatchShape& shape;
  const device::Batch& batch;
  optim::StepScalars* scalars;  ///< device memory
  double* loss_sum;             ///< device memory: of the micro-batch
  std::int64_t logits_row =
      -1;  ///< forward of the last layer: logits of this row instead of the loss; -1: the loss
};
/// Calls the layer of the model, which issues its operations.
void issue_layer(const LayerAction& call, const model::Model& model, device::Operations& operations);

}  // namespace llampi::fsdp
