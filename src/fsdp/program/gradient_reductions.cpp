// SPDX-License-Identifier: Apache-2.0
#include "fsdp/program/gradient_reductions.hpp"

namespace llampi::fsdp {

/// The first write overwrites, others add.
Operand GradientReductions::operand_of(int unit, int parameter, const Part& part, int micro_batch,
                                       std::vector<int>& waits) {
  const UnitPlan& plan = list_.units[unit];
  if (!plan.trained) return write_of(BufferId::none, Slot::parameter_gradient);
  const bool travels = plan.reduced && !plan.cast_gradient;  // otherwise its reduce buffer travels
  if (travels && live_.insert(unit).second) wait_for_reductions(unit, waits);
  const bool per_micro_batch = plan.reduced && (!spec_.options.accumulate_unsharded || in_tree());
  const bool first = written_.insert({parameter, per_micro_batch ? micro_batch : 0}).second;
  const BufferId gradient = in_tree()      ? sums_.gradient_of(unit, micro_batch)
                            : plan.reduced ? list_.buffers.unsharded_gradient(unit)
                                           : list_.buffers.sharded_gradient(unit);
  return {gradient, Slot::parameter_gradient, first ? Access::write : Access::both, part};
}

void GradientReductions::end_micro_batch(int unit, int micro_batch) {
  const int reduction =
      in_tree() ? sums_.end_micro_batch(unit, micro_batch) : reduce_in_any_order(unit, micro_batch);
  if (reduction < 0) return;
  live_.erase(unit);
  pending_.push_back(reduction);
}

void GradientReductions::end() {
  if (in_tree()) sums_.end();
}

/// The reduction after which the unit's gradient has left; -1: none is due.
int GradientReductions::reduce_in_any_order(int unit, int micro_batch) {
  const auto& options = spec_.options;
  const bool is_last = micro_batch + 1 == options.micro_batches;
  if (options.accumulate_unsharded && !is_last) return -1;
  const UnitPlan& plan = list_.units[unit];
  int reduction = -1;
  if (plan.reduced) {
    BufferId gradient = list_.buffers.unsharded_gradient(unit);
    if (plan.cast_gradient) {
      Action cast{.op = Op::cast_grads, .unit = unit, .micro_batch = micro_batch};
      wait_for_reductions(unit, cast.waits);
      cast.operands = {read_of(gradient), write_of(list_.buffers.reduce_buffer(unit))};
      list_.push(std::move(cast));
      gradient = list_.buffers.reduce_buffer(unit);
    }
    const bool adds = micro_batch > 0 && !options.accumulate_unsharded;
    reduction = push_reduction(list_, {unit, micro_batch, gradient, list_.buffers.sharded_gradient(unit),
                                       adds ? Accumulate::yes : Accumulate::no});
    if (is_hybrid(spec_, unit) && is_last) push_all_reduce(list_, unit, micro_batch, 0);
  }
  if (is_last) list_.reduced[unit] = plan.reduced ? list_.last_reduction : list_.last_compute;
  return reduction;
}

/// One gradient may still be travelling while the next is computed, unless it is of the same unit; those
/// before it must have left.
void GradientReductions::wait_for_reductions(int unit, std::vector<int>& waits) {
  if (pending_.empty()) return;
  const auto& latest = list_.program.actions[pending_.back()];
  const auto kept = latest.unit == unit ? pending_.end() : pending_.end() - 1;
  if (kept == pending_.begin()) return;
  waits.push_back(*(kept - 1));
  pending_.erase(pending_.begin(), kept);
}

}  // namespace llampi::fsdp
