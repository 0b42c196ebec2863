// SPDX-License-Identifier: Apache-2.0
#include "fsdp/program/fp8_casts.hpp"

#include <utility>

namespace llampi::fsdp {

Fp8Casts::Fp8Casts(Emission& list)
    : list_(list), weights_(list.spec.specs.size()), is_cast_(list.spec.units.size()) {
  const auto& weights = list.buffers.fp8_weights();
  for (int w = 0; w < static_cast<int>(weights.size()); ++w) weights_[weights[w].layer].push_back(w);
}

void Fp8Casts::emit_scales() {
  const auto& lasting = list_.program.persistent;
  if (lasting.fp8_scales == BufferId::none) return;
  const int units = static_cast<int>(list_.units.size());
  Action find{.op = Op::fp8_maxima};
  for (int u = 0; u < units; ++u) {
    require(!list_.units[u].fp8 || !list_.units[u].uploaded, "shards in host memory are not cast to 8 bits");
    if (list_.units[u].fp8) find.operands.push_back(read_of(lasting.units[u].shard));
  }
  find.operands.push_back(write_of(lasting.fp8_maxima, Slot::fp8_maxima));
  const int found = list_.push(std::move(find));
  Action scale{.op = Op::fp8_scales,
               .operands = {read_of(lasting.fp8_maxima, Slot::fp8_maxima),
                            write_of(lasting.fp8_scales, Slot::fp8_scales)}};
  if (list_.spec.shards > 1) {
    scale.waits.push_back(
        push_values_reduction(list_, {.op = Op::all_reduce_maxima,
                                      .values = both_of(lasting.fp8_maxima, Slot::fp8_maxima),
                                      .elements = list_.program[lasting.fp8_maxima].elements(),
                                      .dtype = DType::int32,
                                      .ranks = Ranks::shard_group,
                                      .after = found}));
  }
  list_.push(std::move(scale));
  for (int u = 0; u < units; ++u) {
    if (!list_.units[u].gathered) emit_cast(u);
  }
}

void Fp8Casts::emit_cast(int unit) {
  const auto& lasting = list_.program.persistent;
  if (!list_.units[unit].fp8 || is_cast_[unit]) return;
  is_cast_[unit] = true;
  list_.push(
      {.op = Op::fp8_cast,
       .unit = unit,
       .operands = {read_of(lasting.units[unit].shard), read_of(lasting.fp8_maxima, Slot::fp8_maxima),
                    both_of(lasting.step_scalars, Slot::scalars), write_of(list_.buffers.fp8_shard(unit))}});
}

void Fp8Casts::emit_transposes(const ComputeEvent& event, std::span<const BufferId> source,
                               std::vector<int>& arrived) {
  if (!has_weights(event.layer)) return;
  Action transpose{.op = Op::transpose, .layer = event.layer, .micro_batch = event.micro_batch};
  for (const int w : weights_[event.layer]) {
    const Fp8WeightPlace& weight = list_.buffers.fp8_weights()[w];
    const Part part{.offset = weight.offset, .rows = weight.rows, .cols = weight.cols};
    transpose.operands.push_back(read_of(source[weight.unit], Slot::input, part));
  }
  for (const int w : weights_[event.layer])
    transpose.operands.push_back(write_of(list_.buffers.transposed(w)));
  transpose.waits = std::exchange(arrived, {});
  list_.push(std::move(transpose));
}

void Fp8Casts::add_operands(Action& action, const ComputeEvent& event) {
  const bool transposed = event.op == Op::backward;
  for (const int w : weights_[event.layer]) {
    const Fp8WeightPlace& weight = list_.buffers.fp8_weights()[w];
    const Part& part = transposed ? weight.transposed_scales : weight.scales;
    action.operands.push_back(read_of(list_.program.persistent.fp8_scales, Slot::fp8_scales, part));
  }
  for (const int w : weights_[event.layer])
    action.operands.push_back(
        read_of(transposed ? list_.buffers.transposed(w) : BufferId::none, Slot::transposed));
}

}  // namespace llampi::fsdp
