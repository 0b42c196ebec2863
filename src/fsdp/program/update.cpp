// SPDX-License-Identifier: Apache-2.0
// The end of a step: norm and updates. Where optimizer state lies in host memory, it passes through the
// device, or gradients go to the host and new shards come back.
#include <algorithm>
#include <utility>

#include "fsdp/norm_scalars.hpp"
#include "fsdp/program/emission.hpp"
#include "llampi/fsdp/streams.hpp"

namespace llampi::fsdp {
namespace {

class UpdateBuilder {
 public:
  explicit UpdateBuilder(Emission& list) : list_(list), spec_(list.spec), kept_(list.program.persistent) {
    for (int u = 0; u < static_cast<int>(spec_.units.size()); ++u) {
      if (list.units[u].trained) trained_.push_back(u);
    }
  }

  void run() {
    const bool through_device = spec_.options.offload.optimizer && !spec_.options.offload.host_step;
    // The first states travel while the norm is formed.
    for (std::size_t k = 0; through_device && k < std::min<std::size_t>(2, trained_.size()); ++k)
      state_in_.push_back(emit_state_in(trained_[k], list_.last_compute));
    const int normed = emit_norm();
    if (spec_.options.offload.host_step) {
      emit_host_updates(normed);
    } else if (through_device) {
      emit_streamed_updates();
    } else {
      for (const int u : trained_)
        emit_gather(u,
                    emit_update(u, kept_.units[u], both_of(kept_.units[u].shard, Slot::output, own_part(u))));
    }
  }

 private:
  int emit_norm() {
    emit_squares();
    int reduced = -1;
    const auto reduce_over = [&](Ranks ranks) {
      reduced = push_values_reduction(list_, {.op = Op::all_reduce_squares,
                                              .values = both_of(kept_.norm_scalars, Slot::norm_scalars),
                                              .elements = device::kSumOfSquaresNumbers,
                                              .dtype = DType::int64,
                                              .ranks = ranks,
                                              .after = reduced < 0 ? list_.last_compute : reduced});
    };
    if (spec_.shards > 1) reduce_over(Ranks::shard_group);
    // Replicas hold equal gradients, unless they divide the optimizer state.
    if (spec_.units[trained_.front()].state_parts > 1) reduce_over(Ranks::replicate_group);
    Action norm{.op = Op::norm,
                .operands = {read_of(kept_.norm_scalars, Slot::norm_scalars),
                             both_of(kept_.step_scalars, Slot::scalars)}};
    if (reduced >= 0) norm.waits.push_back(reduced);
    return list_.push(std::move(norm));
  }

  /// Not beside the backward pass: on an H100 that gained nothing. In the order in which gradients are
  /// complete, so that the last reductions are under way meanwhile.
  void emit_squares() {
    std::vector<int> units = trained_;
    std::ranges::sort(units, {}, [&](int unit) { return list_.reduced[unit]; });
    Access access = Access::write;
    for (const int u : units) {
      Action squares{
          .op = Op::sum_squares,
          .unit = u,
          .operands = {read_of(list_.buffers.all_reduced_gradient(u), Slot::gradient),
                       {kept_.norm_scalars, Slot::norm_scalars, std::exchange(access, Access::both)}}};
      const int complete = list_.reduced[u];
      if (list_.program.actions[complete].stream != squares.stream) squares.waits.push_back(complete);
      list_.push(std::move(squares));
    }
  }

  /// What this rank updates of a shard.
  Part own_part(int unit) const {
    return {.own = spec_.units[unit].state_parts > 1 ? Own::replica_part : Own::none};
  }

  /// The parts of the shard that other replicas have updated, where they divide the optimizer state.
  void emit_gather(int unit, int updated) {
    if (spec_.units[unit].state_parts == 1) return;
    const BufferId shard = kept_.units[unit].shard;
    list_.push({.op = Op::all_gather,
                .stream = replicas_stream(spec_.options.all_reduce_stream, spec_.shards),
                .unit = unit,
                .ranks = Ranks::replicate_group,
                .operands = {read_of(shard, Slot::input, own_part(unit)), write_of(shard)},
                .waits = {updated},
                .bytes = list_.bytes_of(shard)});
  }

  /// @param state where master and moments are during the update
  /// @param shard the new one: `write` where it does not lie where it is kept
  int emit_update(int unit, const UnitState& state, const Operand& shard, std::vector<int> waits = {}) {
    const Part of_master = state.master == kept_.units[unit].shard ? own_part(unit) : Part();
    return list_.push(
        {.op = Op::update,
         .unit = unit,
         .operands = {read_of(list_.buffers.all_reduced_gradient(unit), Slot::gradient),
                      read_of(kept_.step_scalars, Slot::scalars),
                      both_of(state.master, Slot::master, of_master), both_of(state.exp_avg, Slot::exp_avg),
                      both_of(state.exp_avg_sq, Slot::exp_avg_sq), shard},
         .waits = std::move(waits)});
  }

  /// What of a unit's state is kept in host memory, and where it is on the device meanwhile.
  std::vector<std::pair<BufferId, BufferId>> travelling(int unit) {
    const UnitState& kept = kept_.units[unit];
    const StreamedState streamed = list_.buffers.streamed(unit);
    std::vector<std::pair<BufferId, BufferId>> pairs;
    if (streamed.master != BufferId::none) pairs.emplace_back(kept.master, streamed.master);
    pairs.emplace_back(kept.exp_avg, streamed.exp_avg);
    pairs.emplace_back(kept.exp_avg_sq, streamed.exp_avg_sq);
    return pairs;
  }

  int emit_state_in(int unit, int after) {
    std::vector<std::pair<BufferId, BufferId>> copies;
    for (const auto& [kept, streamed] : travelling(unit)) copies.emplace_back(kept, streamed);
    Action copy = copy_of(Op::h2d, unit, CopyPayload::state, copies, {after});
    // The new shard has its room from the beginning, so that two units at a time are what there is.
    if (const BufferId shard = list_.buffers.streamed(unit).shard; shard != BufferId::none)
      copy.operands.push_back({shard, Slot::reserved, Access::reserve});
    return list_.push(std::move(copy));
  }

  int emit_state_out(int unit, int after) {
    std::vector<std::pair<BufferId, BufferId>> copies;
    for (const auto& [kept, streamed] : travelling(unit)) copies.emplace_back(streamed, kept);
    if (const BufferId shard = list_.buffers.streamed(unit).shard; shard != BufferId::none)
      copies.emplace_back(shard, kept_.units[unit].shard);
    return list_.push(copy_of(Op::d2h, unit, CopyPayload::state, copies, {after}));
  }

  /// @param copies from, to
  Action copy_of(Op op, int unit, CopyPayload payload,
                 const std::vector<std::pair<BufferId, BufferId>>& copies, std::vector<int> waits) const {
    Action copy{.op = op,
                .stream = op == Op::h2d ? kH2dStream : kD2hStream,
                .unit = unit,
                .payload = payload,
                .waits = std::move(waits)};
    for (const auto& [from, to] : copies) {
      copy.operands.push_back(read_of(from));
      copy.bytes += list_.bytes_of(from);
    }
    for (const auto& [from, to] : copies) copy.operands.push_back(write_of(to));
    return copy;
  }

  /// Two units are on the device at a time: while one comes in, the one before it is updated and goes out.
  void emit_streamed_updates() {
    for (std::size_t k = 0; k < trained_.size(); ++k) {
      const int unit = trained_[k];
      const StreamedState streamed = list_.buffers.streamed(unit);
      UnitState state = kept_.units[unit];
      Operand shard = both_of(state.shard, Slot::output, own_part(unit));
      if (streamed.master != BufferId::none) {
        if (!state.has_own_master()) shard = both_of(streamed.master, Slot::output);
        state.master = streamed.master;
      }
      if (streamed.shard != BufferId::none) shard = write_of(streamed.shard);
      state.exp_avg = streamed.exp_avg, state.exp_avg_sq = streamed.exp_avg_sq;
      const int update = emit_update(unit, state, shard, {state_in_[k]});
      emit_gather(unit, update);
      const int out = emit_state_out(unit, update);
      if (k + 2 < trained_.size()) state_in_.push_back(emit_state_in(trained_[k + 2], out));
    }
  }

  int emit_gradient_out(std::size_t k, std::vector<int> after) {
    const int unit = trained_[k];
    const BufferId gradient = list_.buffers.all_reduced_gradient(unit);
    return list_.push(copy_of(Op::d2h, unit, CopyPayload::gradient,
                              {{gradient, list_.buffers.host_gradient(unit)}}, std::move(after)));
  }

  /// While the host updates one unit, the gradient of the next comes out and the shard of the one before goes
  /// in.
  void emit_host_updates(int normed) {
    list_.push(
        copy_of(Op::d2h, -1, CopyPayload::scalars, {{kept_.step_scalars, kept_.host_scalars}}, {normed}));
    std::vector<int> outs, ins;
    for (std::size_t k = 0; k < std::min<std::size_t>(2, trained_.size()); ++k)
      outs.push_back(emit_gradient_out(k, {normed}));
    for (std::size_t k = 0; k < trained_.size(); ++k) {
      std::vector<int> waits = {outs[k]};
      if (!spec_.options.offload.params && k >= 2) waits.push_back(ins[k - 2]);
      const int unit = trained_[k];
      const Operand shard = new_shard_on_host(unit);
      const int updated = emit_host_update(unit, shard, std::move(waits));
      if (k + 2 < trained_.size()) {
        std::vector<int> after = {updated};
        if (!ins.empty()) after.push_back(ins.back());  // its memory on the host may be that shard's
        outs.push_back(emit_gradient_out(k + 2, std::move(after)));
      }
      if (spec_.options.offload.params) continue;
      Action copy = copy_of(Op::h2d, unit, CopyPayload::new_shard, {{shard.buffer, kept_.units[unit].shard}},
                            {updated});
      copy.operands.back().part = own_part(unit);
      ins.push_back(list_.push(std::move(copy)));
      emit_gather(unit, ins.back());
    }
  }

  /// Where it is kept, if that is the host's memory; else from where it goes to the device: a room of its
  /// own, or the master, where that is no different.
  Operand new_shard_on_host(int unit) {
    const UnitState& kept = kept_.units[unit];
    if (list_.buffers.placement().host_shard) return both_of(kept.shard, Slot::output);
    const BufferId room = list_.buffers.host_shard(unit);
    return room == BufferId::none ? both_of(kept.master, Slot::output) : write_of(room);
  }

  int emit_host_update(int unit, const Operand& shard, std::vector<int> waits) {
    const UnitState& kept = kept_.units[unit];
    return list_.push({.op = Op::update,
                       .stream = device::Stream::host,
                       .unit = unit,
                       .operands = {read_of(list_.buffers.host_gradient(unit), Slot::gradient),
                                    read_of(kept_.host_scalars, Slot::scalars),
                                    both_of(kept.master, Slot::master), both_of(kept.exp_avg, Slot::exp_avg),
                                    both_of(kept.exp_avg_sq, Slot::exp_avg_sq), shard},
                       .waits = std::move(waits)});
  }

  Emission& list_;
  const ProgramSpec& spec_;
  const PersistentBuffers& kept_;
  std::vector<int> trained_;
  std::vector<int> state_in_;  // per trained unit
};

}  // namespace

void emit_update(Emission& list) { UpdateBuilder(list).run(); }

}  // namespace llampi::fsdp
