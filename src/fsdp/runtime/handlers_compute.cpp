// SPDX-License-Identifier: Apache-2.0
// Layers: forward, recompute, backward; and casts.
#include <algorithm>
#include <array>

#include "fsdp/runtime/bound_program.hpp"
#include "fsdp/runtime/handlers.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/device/host_batch.hpp"
#include "llampi/optim/adamw.hpp"

namespace llampi::fsdp {
namespace {

constexpr std::array kLayerOps = {Op::forward, Op::recompute, Op::backward};

device::Batch batch_of(const Call& call) {
  const PlacedInput& placed = call.run.micro_batches[static_cast<std::size_t>(call.action.micro_batch)];
  return device::HostBatch::view_of(call[Slot::batch], placed.counts.segments, placed.kv_len,
                                    placed.counts.lengths);
}

/// Per parameter gradient: overwrite or add.
std::vector<Accumulate> accumulate_of(const Action& action) {
  std::vector<Accumulate> result;
  for (const auto& operand : action.operands) {
    if (operand.slot == Slot::parameter_gradient)
      result.push_back(operand.access == Access::both ? Accumulate::yes : Accumulate::no);
  }
  return result;
}

/// In the order of LayerSpec::fp8_weights.
std::vector<model::Fp8Weight> fp8_weights_of(const Call& call) {
  const auto scales = call.all(Slot::fp8_scales), transposed = call.all(Slot::transposed);
  std::vector<model::Fp8Weight> weights;
  for (std::size_t i = 0; i < scales.size(); ++i)
    weights.push_back({.scale = scales[i], .transposed = transposed[i]});
  return weights;
}

/// Lets the device prepare what is to be issued.
class Preparation final : public device::Operations {
 public:
  explicit Preparation(device::Operations& device) : device_(device) {}
  const device::OperationSizes& sizes() const override { return device_.sizes(); }

 protected:
  void issue(const device::Operation& operation) override { device_.prepare(operation); }

 private:
  device::Operations& device_;
};

/// @param operations what the layer issues to
void run_layer(const RankContext& rank, device::Operations& operations, const Call& call) {
  const Action& action = call.action;
  const device::Batch batch = batch_of(call);
  const auto accumulate = accumulate_of(action);
  const auto fp8_weights = fp8_weights_of(call);
  auto* const scalars = static_cast<optim::StepScalars*>(call[Slot::scalars].data);
  model::LayerContext context{.operations = operations,
                              .batch = batch,
                              .seq_len = rank.options.batch.seq_len,
                              .dp_room = rank.options.batch.dp_room,
                              .logits_bytes = rank.options.batch.logits_bytes,
                              .input = call.find(Slot::input),
                              .output = call.find(Slot::output),
                              .gradient = call.find(Slot::residual_gradient),
                              .parameters = call.all(Slot::parameter),
                              .parameter_gradients = call.all(Slot::parameter_gradient),
                              .accumulate = accumulate,
                              .saved = call.all(Slot::saved),
                              .scratch = call.all(Slot::scratch),
                              .kv_cache = call.all(Slot::kv_cache),
                              .constants = call.all(Slot::constant),
                              .fp8_weights = fp8_weights,
                              // What is computed again has been counted.
                              .fp8_counts = action.op == Op::recompute ? nullptr : &scalars->fp8,
                              .gradient_maximum = {scalars->gradient_maximum, DType::int32, 1, 1},
                              .inverse_tokens = &scalars->inverse_tokens,
                              .loss_sum = optim::loss_sums_of(scalars) + action.micro_batch,
                              .logits = {},
                              .logits_row = 0};
  const model::Layer& layer = *rank.model.layers()[static_cast<std::size_t>(action.layer)];
  if (action.op == Op::backward) {
    layer.backward(context);
  } else if (action.selective) {
    layer.recompute(context);
  } else {
    if (call.run.logits_row >= 0) {
      context.logits = call.find(Slot::logits);
      context.logits_row = call.run.logits_row;
    }
    layer.forward(context);
  }
}

}  // namespace

void add_compute(HandlerTable& handlers, const RankContext& rank) {
  for (const Op op : kLayerOps) {
    handlers.add(op, on_its_stream([&rank](Call& call) { run_layer(rank, rank.device, call); }));
  }
  for (const Op op : {Op::cast_params, Op::cast_grads}) {
    handlers.add(
        op, on_its_stream([&rank](Call& call) {
          rank.device.run(device::op::Cast{.source = call[Slot::input], .destination = call[Slot::output]});
        }));
  }
  // The memory belongs to the next live range from here on.
  handlers.add(Op::reshard, on_its_stream([](Call&) {}));
}

void prepare_layers(const RankContext& rank, const BoundProgram& bound, const SegmentCounts& counts) {
  Preparation preparation(rank.device);
  for (std::size_t i = 0; i < bound.actions.size(); ++i) {
    const Action& action = bound.program->actions[i];
    if (std::ranges::find(kLayerOps, action.op) == kLayerOps.end()) continue;
    const std::vector<PlacedInput> inputs(static_cast<std::size_t>(action.micro_batch) + 1,
                                          PlacedInput{.values = {}, .counts = counts, .kv_len = 0});
    const RunInputs run{inputs};
    run_layer(rank, preparation,
              {.action = action, .tensors = bound.actions[i].tensors, .run = run, .record = nullptr});
  }
}

}  // namespace llampi::fsdp
