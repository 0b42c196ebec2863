// SPDX-License-Identifier: Apache-2.0
// Layers: forward, recompute, backward; and casts.
#include <algorithm>
#include <array>

#include "fsdp/runtime/bound_program.hpp"
#include "fsdp/runtime/handlers.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/device/host_batch.hpp"
#include "llampi/fsdp/layer_action.hpp"
#include "llampi/optim/adamw.hpp"

namespace llampi::fsdp {
namespace {

constexpr std::array kLayerOps = {Op::forward, Op::recompute, Op::backward};

device::Batch batch_of(const Call& call) {
  const PlacedInput& placed = call.run.micro_batches[static_cast<std::size_t>(call.action.micro_batch)];
  return device::HostBatch::view_of(call[Slot::batch], placed.counts, placed.kv_len);
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
  const device::Batch batch = batch_of(call);
  auto* const scalars = static_cast<optim::StepScalars*>(call[Slot::scalars].data);
  issue_layer({.action = call.action,
               .tensors = call.tensors,
               .shape = rank.options.batch,
               .batch = batch,
               .scalars = scalars,
               .loss_sum = optim::loss_sums_of(scalars) + call.action.micro_batch,
               .logits_row = call.run.logits_row},
              rank.model, operations);
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

void prepare_layers(const RankContext& rank, const BoundProgram& bound, const BatchCounts& counts) {
  Preparation preparation(rank.device);
  for (std::size_t i = 0; i < bound.actions.size(); ++i) {
    const Action& action = bound.program->actions[i];
    if (std::ranges::find(kLayerOps, action.op) == kLayerOps.end()) continue;
    if (action.micro_batch > 1) continue;  // they are as the second one, which adds to gradients
    const std::vector<PlacedInput> inputs(static_cast<std::size_t>(action.micro_batch) + 1,
                                          PlacedInput{.values = {}, .counts = counts, .kv_len = 0});
    const RunInputs run{inputs};
    run_layer(rank, preparation,
              {.action = action, .tensors = bound.actions[i].tensors, .run = run, .record = nullptr});
  }
}

}  // namespace llampi::fsdp
