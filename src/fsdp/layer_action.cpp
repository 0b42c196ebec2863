// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/layer_action.hpp"

#include <algorithm>
#include <vector>

namespace llampi::fsdp {
namespace {

/// Per parameter gradient: overwrite or add.
std::vector<Accumulate> accumulate_of(const Action& action) {
  std::vector<Accumulate> result;
  for (const auto& operand : action.operands) {
    if (operand.slot == Slot::parameter_gradient)
      result.push_back(operand.access == Access::both ? Accumulate::yes : Accumulate::no);
  }
  return result;
}

}  // namespace

std::span<const Tensor> tensors_of(const Action& action, std::span<const Tensor> tensors, Slot slot) {
  const auto is_of = [&](const Operand& operand) { return operand.slot == slot; };
  const auto& operands = action.operands;
  const auto begin = std::find_if(operands.begin(), operands.end(), is_of);
  const auto end = std::find_if_not(begin, operands.end(), is_of);
  return tensors.subspan(static_cast<std::size_t>(begin - operands.begin()),
                         static_cast<std::size_t>(end - begin));
}

void issue_layer(const LayerAction& call, const model::Model& model, device::Operations& operations) {
  const Action& action = call.action;
  const auto all = [&](Slot slot) { return tensors_of(action, call.tensors, slot); };
  const auto first = [&](Slot slot) { return all(slot).empty() ? Tensor{} : all(slot).front(); };
  const auto accumulate = accumulate_of(action);
  // In the order of LayerSpec::fp8_weights.
  const auto scales = all(Slot::fp8_scales), transposed = all(Slot::transposed);
  std::vector<model::Fp8Weight> fp8_weights;
  for (std::size_t i = 0; i < scales.size(); ++i) {
    fp8_weights.push_back(
        {.scale = scales[i], .transposed = i < transposed.size() ? transposed[i] : Tensor{}});
  }
  model::LayerContext context{.operations = operations,
                              .batch = call.batch,
                              .seq_len = call.shape.seq_len,
                              .attention_room = call.shape.attention_room,
                              .logits_bytes = call.shape.logits_bytes,
                              .input = first(Slot::input),
                              .output = first(Slot::output),
                              .gradient = first(Slot::residual_gradient),
                              .parameters = all(Slot::parameter),
                              .parameter_gradients = all(Slot::parameter_gradient),
                              .accumulate = accumulate,
                              .saved = all(Slot::saved),
                              .recomputes = action.recomputes,
                              .scratch = all(Slot::scratch),
                              .kv_cache = all(Slot::kv_cache),
                              .constants = all(Slot::constant),
                              .fp8_weights = fp8_weights,
                              // What is computed again has been counted.
                              .fp8_counts = action.op == Op::recompute ? nullptr : &call.scalars->fp8,
                              .gradient_maximum = {call.scalars->gradient_maximum, DType::int32, 1, 1},
                              .inverse_tokens = &call.scalars->inverse_tokens,
                              .loss_sum = call.loss_sum,
                              .logits = {},
                              .logits_row = -1};
  const model::Layer& layer = *model.layers()[static_cast<std::size_t>(action.layer)];
  if (action.op == Op::backward) {
    layer.backward(context);
  } else {
    if (call.logits_row >= 0) {
      context.logits = first(Slot::logits);
      context.logits_row = call.logits_row;
    }
    layer.forward(context);
  }
}

}  // namespace llampi::fsdp
