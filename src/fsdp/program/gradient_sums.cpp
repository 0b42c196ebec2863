// SPDX-License-Identifier: Apache-2.0
#include "fsdp/program/gradient_sums.hpp"

#include <utility>

#include "llampi/comm/workspace.hpp"
#include "llampi/fsdp/streams.hpp"
#include "llampi/fsdp/sum_order.hpp"

namespace llampi::fsdp {
namespace {

/// How sums over replicas are formed.
Op over_replicas(const Unit& unit) { return unit.state_parts > 1 ? Op::reduce_scatter : Op::all_reduce; }

std::int64_t workspace_over_replicas(const ProgramSpec& spec, const Unit& unit, std::int64_t elements,
                                     DType dtype) {
  return unit.state_parts > 1 ? comm::reduce_scatter_workspace(spec.backend, elements, spec.replicas, dtype,
                                                               spec.options.reduction)
                              : comm::all_reduce_workspace(spec.backend, elements, spec.replicas, dtype,
                                                           spec.options.reduction);
}

Accumulate accumulate_of(const PartialSums::Term& term) {
  return term.adds ? Accumulate::yes : Accumulate::no;
}

}  // namespace

int push_reduction(Emission& list, const GradientReduction& r) {
  const ProgramSpec& spec = list.spec;
  const Unit& unit = spec.units[r.unit];
  const bool sharded = unit.shards > 1;
  const std::int64_t elements = unit.flat_elements();
  const DType dtype = spec.options.precision.reduce;
  const std::int64_t workspace = sharded ? comm::reduce_scatter_workspace(spec.backend, elements, unit.shards,
                                                                          dtype, spec.options.reduction)
                                         : workspace_over_replicas(spec, unit, elements, dtype);
  list.last_reduction = list.push(
      {.op = sharded ? Op::reduce : over_replicas(unit),
       .stream = kReduceStream,
       .unit = r.unit,
       .micro_batch = r.micro_batch,
       .ranks = sharded ? Ranks::shard_group : Ranks::replicate_group,
       .operands = {both_of(r.gradient, Slot::input),
                    {r.shard, Slot::output, r.accumulate == Accumulate::yes ? Access::both : Access::write},
                    workspace_operand(list, kReduceStream, workspace)},
       .waits = {list.last_compute},
       .bytes = list.bytes_of(r.gradient)});
  return list.last_reduction;
}

int push_all_reduce(Emission& list, int unit, int micro_batch, int sum, std::vector<int> waits) {
  const ProgramSpec& spec = list.spec;
  const Unit& of = spec.units[unit];
  const BufferId shard = list.buffers.sharded_gradient(unit, sum);
  const device::Stream stream = replicas_stream(spec.options.all_reduce_stream, spec.shards);
  if (spec.options.all_reduce_stream) waits.push_back(list.last_reduction);  // the unit's
  const std::int64_t workspace =
      workspace_over_replicas(spec, of, of.shard_elements, spec.options.precision.gradient_shard);
  list.last_reduction =
      list.push({.op = over_replicas(of),
                 .stream = stream,
                 .unit = unit,
                 .micro_batch = micro_batch,
                 .ranks = Ranks::replicate_group,
                 .operands = {{shard, Slot::input, of.state_parts > 1 ? Access::both : Access::read},
                              write_of(list.buffers.all_reduced_gradient(unit, sum)),
                              workspace_operand(list, stream, workspace)},
                 .waits = std::move(waits),
                 .bytes = list.bytes_of(shard)});
  return list.last_reduction;
}

GradientSums::GradientSums(Emission& list)
    : list_(list),
      spec_(list.spec),
      together_(micro_batches_of_subtree(list.spec.options.micro_batches)),
      units_(list.spec.units.size()) {}

BufferId GradientSums::gradient_of(int unit, int micro_batch) {
  if (!spec_.options.accumulate_unsharded) return list_.buffers.unsharded_gradient(unit);
  OfUnit& sums = units_[unit];
  if (sums.written != micro_batch) {
    sums.written = micro_batch;
    sums.written_to = sums.within.begin_term();
  }
  return list_.buffers.unsharded_gradient(unit, sums.written_to);
}

/// On GPUs a unit's partial sums are added, and their memory is free, as soon as that can be without the compute stream
/// waiting for the reduction. A host that computes would have to stand still for that.
int GradientSums::end_micro_batch(int unit, int micro_batch) {
  const int reduction = add_micro_batch(unit, micro_batch);
  if (spec_.backend == comm::Backend::nccl && micro_batch + 1 == spec_.options.micro_batches) {
    if (last_ >= 0) end_unit(last_);
    last_ = unit;
  }
  return reduction;
}

int GradientSums::add_micro_batch(int unit, int micro_batch) {
  OfUnit& sums = units_[unit];
  const bool complete = (micro_batch + 1) % together_ == 0;
  if (spec_.options.accumulate_unsharded) {
    for (const auto& [from, to] : sums.within.end_term({sums.written_to}))
      push_addition(unit, list_.buffers.unsharded_gradient(unit, from),
                    list_.buffers.unsharded_gradient(unit, to), {});
    if (!complete) return -1;
    sums.within.end();
  }
  add_pending(unit);
  const BufferId gradient = list_.buffers.unsharded_gradient(unit);
  if (!is_hybrid(spec_, unit)) {
    const auto term = sums.between.begin_added_term();
    reduce(unit, micro_batch, gradient, term.buffer, accumulate_of(term));
    sums.pending = between_subtrees(unit, sums.between.end_term(term));
    return sums.reduction;
  }
  if (spec_.options.accumulate_unsharded) {
    reduce(unit, micro_batch, gradient, sums.between.begin_term(), Accumulate::no);
  } else {
    const auto term = sums.within.begin_added_term();
    reduce(unit, micro_batch, gradient, sums.between.free_buffer(term.buffer), accumulate_of(term));
    for (const auto& [from, to] : sums.within.end_term(term))
      sums.pending.push_back({list_.buffers.sharded_gradient(unit, sums.between.free_buffer(from)),
                              list_.buffers.sharded_gradient(unit, sums.between.free_buffer(to))});
    if (!complete) return sums.reduction;
    add_pending(unit);
    sums.within.end();
  }
  const int subtree = sums.between.begin_term(), reduced = sums.reduction;
  sums.reduction = push_all_reduce(list_, unit, micro_batch, subtree, {list_.last_compute});
  sums.pending = between_subtrees(unit, sums.between.end_term({subtree}));
  return reduced;
}

void GradientSums::end() {
  if (last_ >= 0) end_unit(last_);
  if (spec_.backend == comm::Backend::nccl) return;
  for (int u = static_cast<int>(units_.size()) - 1; u >= 0; --u) {  // as they were reduced
    if (list_.units[u].trained) end_unit(u);
  }
}

void GradientSums::end_unit(int unit) {
  OfUnit& sums = units_[unit];
  for (const Addition& addition : between_subtrees(unit, sums.between.end()))
    sums.pending.push_back(addition);
  const bool adds = !sums.pending.empty();
  add_pending(unit);
  list_.reduced[unit] = adds ? list_.last_compute : sums.reduction;
}

void GradientSums::reduce(int unit, int micro_batch, BufferId gradient, int buffer, Accumulate accumulate) {
  units_[unit].reduction = push_reduction(
      list_, {unit, micro_batch, gradient, list_.buffers.sharded_gradient(unit, buffer), accumulate});
}

std::vector<GradientSums::Addition> GradientSums::between_subtrees(
    int unit, const std::vector<PartialSums::Addition>& additions) {
  std::vector<Addition> result;
  for (const auto& [from, to] : additions)
    result.push_back(
        {list_.buffers.all_reduced_gradient(unit, from), list_.buffers.all_reduced_gradient(unit, to)});
  return result;
}

/// Not as soon as they can be: the compute stream would wait for the reduction.
void GradientSums::add_pending(int unit) {
  OfUnit& sums = units_[unit];
  for (const auto& [from, to] : std::exchange(sums.pending, {}))
    push_addition(unit, from, to, {sums.reduction});
}

void GradientSums::push_addition(int unit, BufferId from, BufferId to, std::vector<int> waits) {
  list_.push({.op = Op::add,
              .unit = unit,
              .operands = {read_of(from), both_of(to, Slot::output)},
              .waits = std::move(waits)});
}

}  // namespace llampi::fsdp
