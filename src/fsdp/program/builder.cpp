// SPDX-License-Identifier: Apache-2.0
#include "fsdp/program/builder.hpp"

#include <map>
#include <utility>

#include "fsdp/program/emission.hpp"
#include "fsdp/program/fp8_casts.hpp"
#include "fsdp/program/gradient_reductions.hpp"
#include "fsdp/program/host_copies.hpp"
#include "fsdp/program/schedule.hpp"
#include "llampi/comm/workspace.hpp"
#include "llampi/fsdp/streams.hpp"

namespace llampi::fsdp {
namespace {

std::vector<bool> in_place(const std::vector<UnitPlan>& units) {
  std::vector<bool> result;
  for (const auto& unit : units) result.push_back(unit.in_place());
  return result;
}

/// Forward and backward of all micro-batches, with what moves parameters and gradients.
class Builder {
 public:
  explicit Builder(const ProgramSpec& spec)
      : spec_(spec),
        list_(spec),
        gradients_(list_),
        schedule_(make_schedule(spec, in_place(list_.units))),
        fp8_(list_),
        host_copies_(list_, schedule_),
        unit_of_(unit_of_parameter(spec.units, spec.parameters.size())) {
    at_.resize(schedule_.events.size());
    index_residencies();
    find_parts();
    find_last_writes();
    // Kept where layers can read them, parameters are there from the beginning.
    for (int u = 0; u < static_cast<int>(spec.units.size()); ++u)
      source_.push_back(list_.units[u].in_place() ? shard_of(u) : BufferId::none);
  }

  Program run() {
    fp8_.emit_scales();
    for (int e = 0; e < static_cast<int>(schedule_.events.size()); ++e) emit_event(e);
    if (spec_.forward_only) return std::move(list_.program);
    gradients_.end();
    emit_update(list_);
    return std::move(list_.program);
  }

 private:
  /// As it is gathered, or read where it is kept.
  BufferId shard_of(int unit) {
    return list_.units[unit].fp8 ? list_.buffers.fp8_shard(unit) : list_.program.persistent.units[unit].shard;
  }

  void index_residencies() {
    issued_at_.resize(2 * schedule_.events.size());
    for (int i = 0; i < static_cast<int>(schedule_.residencies.size()); ++i) {
      const auto& r = schedule_.residencies[i];
      at_[r.first].first.push_back(i);
      at_[r.last].last.push_back(i);
      issued_at_[r.issue.index].push_back(i);
    }
    arrivals_.resize(schedule_.residencies.size());
  }

  /// Where each parameter stands in its unit's flat buffer, whatever that holds.
  void find_parts() {
    parts_.resize(spec_.parameters.size());
    for (const auto& unit : spec_.units) {
      for (const auto& p : unit.parameters) {
        const auto& shape = spec_.parameters[p.parameter].shape;
        const bool matrix = shape.size() == 2;
        parts_[p.parameter] = {
            .offset = p.offset, .rows = matrix ? shape[0] : 1, .cols = matrix ? shape[1] : p.elements};
      }
    }
  }

  void emit_event(int e) {
    const ComputeEvent& event = schedule_.events[e];
    if (e % schedule_.events_per_micro_batch == 0) emit_inputs(event.micro_batch);
    host_copies_.emit_returns(e);
    emit_unshards(IssuePoint::before(e));
    emit_compute(e);
    host_copies_.emit_departures(e);
    for (const int i : at_[e].last) {
      const auto& r = schedule_.residencies[i];
      for (const int unit : with_followers(spec_.units, r.unit)) {
        if (list_.units[unit].in_place()) continue;
        list_.push({.op = Op::reshard,
                    .unit = unit,
                    .micro_batch = event.micro_batch,
                    .pass = r.pass,
                    .operands = {read_of(readable(unit, r.pass))}});
      }
    }
    emit_unshards(IssuePoint::after(e));
    emit_reductions(e);
  }

  void emit_inputs(int m) {
    const auto& lasting = list_.program.persistent;
    Action copy{.op = Op::h2d, .stream = kH2dStream, .micro_batch = m, .payload = CopyPayload::inputs};
    if (spec_.stages_inputs) copy.operands.push_back(read_of(lasting.host_inputs.at(m)));
    copy.operands.push_back(write_of(lasting.inputs.at(m)));
    copy.bytes = list_.bytes_of(lasting.inputs[m]);
    inputs_ = list_.push(std::move(copy));
  }

  void emit_unshards(IssuePoint point) {
    for (const int i : issued_at_[point.index]) {
      const auto& r = schedule_.residencies[i];
      const int m = schedule_.events[r.first].micro_batch;
      for (const int unit : with_followers(spec_.units, r.unit))
        arrivals_[i][unit] = emit_unshard(unit, r.pass, m);
    }
  }

  /// The action after which the unit's parameters are on the device; -1: they are kept there. The memory of
  /// unsharded parameters may have been freed by any action on the compute stream before it in the list.
  int emit_unshard(int unit, Pass pass, int micro_batch) {
    const UnitPlan& plan = list_.units[unit];
    fp8_.emit_cast(unit);
    const BufferId shard = shard_of(unit);
    int arrival = -1;
    std::vector<int> waits;
    if (list_.last_compute >= 0) waits.push_back(list_.last_compute);
    Operand source = read_of(shard);
    if (plan.uploaded) {
      const BufferId whole = list_.buffers.unsharded(unit, pass);
      arrival = list_.push({.op = Op::h2d,
                            .stream = kH2dStream,
                            .unit = unit,
                            .micro_batch = micro_batch,
                            .payload = CopyPayload::shard,
                            .pass = pass,
                            .operands = {source, write_of(whole, Slot::output, {.own = Own::shard})},
                            .waits = waits,
                            .bytes = list_.bytes_of(shard)});
      waits.push_back(arrival);
      source = read_of(whole, Slot::input, {.own = Own::shard});
    }
    if (!plan.gathered) return arrival;
    const BufferId whole = list_.buffers.unsharded(unit, pass);
    return list_.push({.op = Op::unshard,
                       .stream = kUnshardStream,
                       .unit = unit,
                       .micro_batch = micro_batch,
                       .ranks = Ranks::shard_group,
                       .pass = pass,
                       .operands = {source, write_of(whole)},
                       .waits = std::move(waits),
                       .bytes = list_.bytes_of(whole)});
  }

  /// Where layers read a unit's parameters during a residency.
  BufferId readable(int unit, Pass pass) {
    if (list_.units[unit].in_place()) return shard_of(unit);
    return list_.units[unit].cast ? list_.buffers.cast(unit, pass) : list_.buffers.unsharded(unit, pass);
  }

  /// Waits for the parameters that are first used by this event, and casts them. Returns what is still to be
  /// waited for.
  std::vector<int> emit_arrivals(int e) {
    std::vector<int> arrived;
    for (const int i : at_[e].first) {
      const auto& r = schedule_.residencies[i];
      for (const auto& [unit, arrival] : arrivals_[i]) {
        if (arrival >= 0) arrived.push_back(arrival);
        const UnitPlan& plan = list_.units[unit];
        if (plan.cast) {
          const BufferId from = plan.gathered || plan.uploaded ? list_.buffers.unsharded(unit, r.pass)
                                                               : list_.program.persistent.units[unit].shard;
          const BufferId to = list_.buffers.cast(unit, r.pass);
          list_.push({.op = Op::cast_params,
                      .unit = unit,
                      .micro_batch = schedule_.events[e].micro_batch,
                      .pass = r.pass,
                      .operands = {read_of(from), write_of(to)},
                      .waits = std::exchange(arrived, {})});
        }
        source_[unit] = readable(unit, r.pass);
      }
    }
    return arrived;
  }

  void emit_compute(int e) {
    const ComputeEvent& event = schedule_.events[e];
    std::vector<int> arrived = emit_arrivals(e);
    if (event.op == Op::backward) fp8_.emit_transposes(event, source_, arrived);
    Action action{.op = event.op, .layer = event.layer, .micro_batch = event.micro_batch};
    action.recomputes = event.recomputes;
    if (e % schedule_.events_per_micro_batch == 0) {
      action.waits.push_back(inputs_);
      action.may_abort_before = event.micro_batch > 0;
    }
    action.waits.insert(action.waits.end(), arrived.begin(), arrived.end());
    host_copies_.add_waits(e, action.waits);
    if (event.op == Op::backward) {
      add_backward_operands(action, event);
    } else {
      add_forward_operands(action, event);
    }
    add_common_operands(action, event);
    list_.push(std::move(action));
  }

  void add_forward_operands(Action& action, const ComputeEvent& event) {
    const int s = event.layer;
    const auto& layer = spec_.specs[s];
    auto& operands = action.operands;
    if (layer.output.rows > 0 && event.writes_output)
      operands.push_back(write_of(list_.buffers.activation(s)));
    if (s > 0) operands.push_back(read_of(host_copies_.output_of(s - 1)));
    for (int k = 0; k < static_cast<int>(layer.saved.size()); ++k)
      operands.push_back(write_of(list_.buffers.saved(s, k), Slot::saved));
    for (int k = 0; k < static_cast<int>(layer.forward_scratch.size()); ++k)
      operands.push_back(write_of(list_.buffers.forward_scratch(s, k), Slot::scratch));
  }

  /// The gradient of the residual stream is that of the output, then that of the input, in place. Saved
  /// tensors may be overwritten; those that it writes itself live no longer than it.
  void add_backward_operands(Action& action, const ComputeEvent& event) {
    const int s = event.layer;
    const auto& layer = spec_.specs[s];
    auto& operands = action.operands;
    const bool is_loss = s + 1 == static_cast<int>(spec_.specs.size());
    const BufferId residual = list_.buffers.residual_gradient();
    operands.push_back({residual, Slot::residual_gradient, is_loss ? Access::write : Access::both});
    for (int k = 0; !is_loss && k < static_cast<int>(layer.saved.size()); ++k) {
      const bool made = event.recomputes && layer.saved[k].recomputed;
      operands.push_back({host_copies_.saved_of(s, k), Slot::saved, made ? Access::write : Access::both});
    }
    if (s > 0 && (is_loss || layer.keeps_input)) operands.push_back(read_of(host_copies_.output_of(s - 1)));
    for (int k = 0; k < static_cast<int>(layer.backward_scratch.size()); ++k)
      operands.push_back(write_of(list_.buffers.backward_scratch(s, k), Slot::scratch));
    for (const auto& use : layer.parameters)
      operands.push_back(gradients_.operand_of(unit_of_[use.parameter], use.parameter, parts_[use.parameter],
                                               event.micro_batch, action.waits));
  }

  void add_common_operands(Action& action, const ComputeEvent& event) {
    const auto& layer = spec_.specs[event.layer];
    const auto& lasting = list_.program.persistent;
    const bool is_loss = event.layer + 1 == static_cast<int>(spec_.specs.size());
    auto& operands = action.operands;
    for (const auto& use : layer.parameters) {
      const bool is_read = reads_parameter(spec_, event, use);
      const BufferId source = is_read ? source_[unit_of_[use.parameter]] : BufferId::none;
      require(!is_read || source != BufferId::none, "a layer reads parameters that are nowhere");
      operands.push_back(read_of(source, Slot::parameter, parts_[use.parameter]));
    }
    fp8_.add_operands(action, event);
    for (const BufferId cache : lasting.kv_cache[event.layer])
      operands.push_back(both_of(cache, Slot::kv_cache));
    for (const BufferId constant : lasting.constants) operands.push_back(read_of(constant, Slot::constant));
    operands.push_back(read_of(lasting.inputs.at(event.micro_batch), Slot::batch));
    const bool counts = is_loss || fp8_.has_weights(event.layer);  // the loss, or casts
    operands.push_back({lasting.step_scalars, Slot::scalars, counts ? Access::both : Access::read});
    if (is_loss && event.op == Op::forward) operands.push_back(write_of(lasting.logits, Slot::logits));
  }

  /// Of each micro-batch: the last event that writes a unit's gradient.
  void find_last_writes() {
    const int of_micro_batch = schedule_.events_per_micro_batch;
    for (int begin = 0; begin < static_cast<int>(schedule_.events.size()); begin += of_micro_batch) {
      std::vector<int> last(spec_.units.size(), -1);
      for (int e = begin; e < begin + of_micro_batch; ++e) {
        if (schedule_.events[e].op != Op::backward) continue;
        for (const auto& use : spec_.specs[schedule_.events[e].layer].parameters) {
          const int unit = unit_of_[use.parameter];
          if (list_.units[unit].trained) last[unit] = e;
        }
      }
      for (int u = 0; u < static_cast<int>(last.size()); ++u) {
        if (last[u] >= 0) at_[last[u]].completed.push_back(u);
      }
    }
  }

  void emit_reductions(int e) {
    for (const int u : at_[e].completed) gradients_.end_micro_batch(u, schedule_.events[e].micro_batch);
  }

  /// What of the schedule begins or ends with an event.
  struct AtEvent {
    std::vector<int> first, last;  ///< residencies: their first and last uses
    std::vector<int> completed;    ///< units: their gradients of the micro-batch
  };

  const ProgramSpec& spec_;
  Emission list_;
  GradientReductions gradients_;
  Schedule schedule_;
  Fp8Casts fp8_;
  HostCopies host_copies_;
  std::vector<int> unit_of_;
  std::vector<Part> parts_;       // per parameter
  std::vector<BufferId> source_;  // per unit: where layers read it now
  std::vector<AtEvent> at_;
  std::vector<std::vector<int>> issued_at_;   // residencies per issue point
  std::vector<std::map<int, int>> arrivals_;  // per residency and unit: see emit_unshard
  int inputs_ = -1;
};

}  // namespace

Operand workspace_operand(Emission& list, device::Stream stream, std::int64_t bytes) {
  const bool first = !list.buffers.has_workspace(stream);
  return {list.buffers.workspace(stream, bytes), Slot::workspace, first ? Access::write : Access::both};
}

int push_values_reduction(Emission& list, const ValuesReduction& r) {
  const ProgramSpec& spec = list.spec;
  const bool over_shards = r.ranks == Ranks::shard_group;
  const device::Stream stream =
      over_shards ? kReduceStream : replicas_stream(spec.options.all_reduce_stream, spec.shards);
  const std::int64_t workspace = comm::all_reduce_workspace(
      spec.backend, r.elements, over_shards ? spec.shards : spec.replicas, r.dtype);
  return list.push({.op = r.op,
                    .stream = stream,
                    .ranks = r.ranks,
                    .operands = {r.values, workspace_operand(list, stream, workspace)},
                    .waits = {r.after},
                    .bytes = bytes_of(r.dtype, r.elements)});
}

Program build(const ProgramSpec& spec) {
  require(!spec.specs.empty() && spec.options.micro_batches >= 1 && spec.options.limit_all_gathers >= 1,
          "schedule options");
  require(spec.options.micro_batches <= spec.input_buffers, "more micro-batches than room for inputs");
  return Builder(spec).run();
}

}  // namespace llampi::fsdp
