// SPDX-License-Identifier: Apache-2.0
#include "fsdp/program/buffer_table.hpp"

#include <algorithm>
#include <utility>

#include "fsdp/norm_scalars.hpp"
#include "llampi/core/integers.hpp"
#include "llampi/device/host_batch.hpp"
#include "llampi/fsdp/dump.hpp"
#include "llampi/optim/adamw.hpp"

namespace llampi::fsdp {
namespace {

Arena host_or_device(bool host) { return host ? Arena::host : Arena::device; }

/// Bytes that have no shape of their own.
Buffer untyped(Purpose purpose, std::int64_t bytes) {
  return {.purpose = purpose, .dtype = DType::int32, .cols = bytes / 4, .bytes = bytes};
}

Buffer on_host(Buffer buffer) {
  buffer.arena = Arena::host;
  return buffer;
}

Buffer shaped(Buffer buffer) {
  if (buffer.bytes == 0) buffer.bytes = bytes_of(buffer.dtype, buffer.elements());
  return buffer;
}

/// Of the gradients that layers write. GPUs round to bfloat16 what is kept in bfloat16 as they write it, unless
/// micro-batches add up before that.
DType written_gradient(const ProgramSpec& spec) {
  const Precision& precision = spec.options.precision;
  const bool written_once = !spec.options.accumulate_unsharded || spec.options.micro_batches == 1;
  const bool rounds_at_once = spec.backend == comm::Backend::nccl &&
                              precision.gradient_shard == DType::bfloat16 &&
                              precision.compute == DType::bfloat16 && written_once;
  return rounds_at_once ? DType::bfloat16 : precision.gradient();
}

}  // namespace

std::vector<UnitPlan> plan_units(const ProgramSpec& spec) {
  const DType written = written_gradient(spec);
  const bool shortens = spec.options.precision.gradient_shard != written;
  const bool tree =
      spec.options.sum_order == SumOrder::tree;  // then the gradient of each micro-batch is apart
  std::vector<UnitPlan> plans;
  for (const auto& unit : spec.units) {
    plans.push_back(
        {.trained = !unit.frozen,
         .uploaded = state_placement(spec.options.precision, spec.options.offload).host_shard,
         .gathered = unit.shards > 1,
         .fp8 = unit.fp8,
         .cast = gathered_dtype(unit, spec.options.precision) != spec.options.precision.compute && !unit.fp8,
         .reduced = unit.shards > 1 || spec.replicas > 1 || shortens || tree,
         .cast_gradient = spec.options.precision.reduce != written});
  }
  return plans;
}

BufferTable::LayerBuffers::LayerBuffers(const model::LayerSpec& layer)
    : saved(layer.saved.size(), BufferId::none),
      host_saved(layer.saved.size(), BufferId::none),
      returned_saved(layer.saved.size(), BufferId::none),
      forward_scratch(layer.forward_scratch.size(), BufferId::none),
      backward_scratch(layer.backward_scratch.size(), BufferId::none) {}

BufferTable::BufferTable(const ProgramSpec& spec, Program& program)
    : spec_(spec),
      program_(program),
      placement_(state_placement(spec.options.precision, spec.options.offload)),
      fp8_weights_(find_fp8_weights(spec.specs, spec.units, spec.parameters)),
      units_(spec.units.size()),
      layers_(spec.specs.begin(), spec.specs.end()),
      transposed_(fp8_weights_.size(), BufferId::none) {
  workspace_.fill(BufferId::none);
  add_states();
  auto& lasting = program.persistent;
  for (const auto& constant : spec.constants) {
    lasting.constants.push_back(persistent({.purpose = Purpose::constant,
                                            .name = constant.name,
                                            .dtype = constant.dtype,
                                            .rows = constant.rows,
                                            .cols = constant.cols}));
  }
  for (int s = 0; s < static_cast<int>(layers_.size()); ++s) {
    auto& caches = lasting.kv_cache.emplace_back();
    for (const auto& item : spec.specs[s].kv_cache)
      caches.push_back(persistent(of_layer(Purpose::kv_cache, s, item)));
  }
  const std::int64_t scalars = optim::kStepScalars + spec.input_buffers;
  lasting.step_scalars =
      persistent({.purpose = Purpose::step_scalars, .dtype = DType::float64, .cols = scalars});
  lasting.norm_scalars = persistent(
      {.purpose = Purpose::norm_scalars, .dtype = DType::int32, .cols = kNormScalars + std::ssize(units_)});
  if (!fp8_weights_.empty()) {
    lasting.fp8_maxima = persistent(
        {.purpose = Purpose::fp8_maxima, .dtype = DType::int32, .cols = fp8_maxima_elements(fp8_weights_)});
    lasting.fp8_scales =
        persistent({.purpose = Purpose::fp8_scales, .cols = fp8_scales_elements(fp8_weights_)});
  }
  if (spec.shared_workspace > 0)
    lasting.shared_workspace = persistent(untyped(Purpose::shared_workspace, spec.shared_workspace));
  const auto add_inputs = [&](Purpose purpose, Arena arena, std::vector<BufferId>& list) {
    for (int m = 0; m < spec.input_buffers; ++m) {
      list.push_back(persistent({.purpose = purpose,
                                 .name = fmt::format("micro-batch {}", m),
                                 .arena = arena,
                                 .dtype = DType::int32,
                                 .cols = device::HostBatch::elements(spec.options.batch.tokens())}));
    }
  };
  add_inputs(Purpose::inputs, Arena::device, lasting.inputs);
  lasting.logits = persistent(
      {.purpose = Purpose::logits, .dtype = spec.options.precision.compute, .cols = spec.vocabulary});
  if (spec.options.offload.host_step) {
    lasting.host_scalars = persistent(
        {.purpose = Purpose::host_scalars, .arena = Arena::host, .dtype = DType::float64, .cols = scalars});
  }
  if (spec.options.snapshot) add_snapshots();
  if (spec.stages_inputs) add_inputs(Purpose::host_inputs, Arena::host, lasting.host_inputs);
}

void BufferTable::add_states() {
  const auto& precision = spec_.options.precision;
  for (int u = 0; u < static_cast<int>(spec_.units.size()); ++u) {
    const Unit& unit = spec_.units[u];
    const auto keep = [&](Purpose purpose, DType dtype, bool host) {
      const bool shared = purpose == Purpose::parameter_shard || purpose == Purpose::int8_shard;
      Buffer buffer = of_unit(purpose, u, dtype, shared ? unit.shard_elements : unit.part_elements());
      buffer.arena = host_or_device(host);
      return persistent(buffer);
    };
    auto& state = program_.persistent.units.emplace_back();
    // What is cast to 8 bits can be cast from the master, if that is on the device.
    const bool from_master = unit.fp8 && !unit.frozen && !placement_.host_master;
    const DType kept = unit.int8     ? DType::int8_blocks
                       : from_master ? precision.master
                                     : precision.gathered(unit.frozen);
    state.master = state.shard =
        keep(unit.int8 ? Purpose::int8_shard : Purpose::parameter_shard, kept, placement_.host_shard);
    if (unit.frozen) continue;
    if (placement_.own_master && !from_master)
      state.master = keep(Purpose::master, precision.master, placement_.host_master);
    if (!spec_.optimizer_state) continue;
    state.exp_avg = keep(Purpose::exp_avg, precision.moment, placement_.host_moments);
    state.exp_avg_sq = keep(Purpose::exp_avg_sq, precision.moment, placement_.host_moments);
  }
}

/// What this rank saves: of what replicas hold alike, its part.
void BufferTable::add_snapshots() {
  for (int u = 0; u < static_cast<int>(spec_.units.size()); ++u) {
    auto& state = program_.persistent.units[u];
    if (spec_.units[u].frozen && !spec_.options.saves_frozen) continue;
    const std::int64_t n = ceil_div(spec_.units[u].shard_elements, spec_.replicas);
    const auto copy_of = [&](BufferId kept) {
      if (kept == BufferId::none) return BufferId::none;
      return persistent(on_host(of_unit(Purpose::snapshot, u, program_[kept].dtype, n)));
    };
    state.saved_master = copy_of(state.master);
    state.saved_exp_avg = copy_of(state.exp_avg);
    state.saved_exp_avg_sq = copy_of(state.exp_avg_sq);
  }
}

BufferId BufferTable::add(const Buffer& buffer) { return program_.add(shaped(buffer)); }

BufferId BufferTable::persistent(Buffer buffer) {
  buffer.persistent = true;
  return add(buffer);
}

template <class Make>
BufferId BufferTable::once(BufferId& known, const Make& make) {
  if (known == BufferId::none) known = add(make());
  return known;
}

Buffer BufferTable::of_unit(Purpose purpose, int unit, DType dtype, std::int64_t elements) const {
  return {.purpose = purpose, .name = spec_.units[unit].name, .dtype = dtype, .cols = elements};
}

Buffer BufferTable::of_layer(Purpose purpose, int layer, const model::BufferSpec& item) const {
  return {.purpose = purpose,
          .name = name_of(spec_.specs[layer]) + "." + item.name,
          .dtype = item.dtype,
          .rows = item.rows,
          .cols = item.cols};
}

BufferId BufferTable::fp8_shard(int unit) {
  return once(units_[unit].fp8_shard, [&] {
    return of_unit(Purpose::fp8_shard, unit, DType::float8_e4m3fn, spec_.units[unit].shard_elements);
  });
}

BufferId BufferTable::transposed(int weight) {
  const Fp8WeightPlace& place = fp8_weights_[weight];
  return once(transposed_[weight], [&] {
    return of_layer(Purpose::transposed_params, place.layer,
                    {"weight^T", place.cols, place.rows, DType::float8_e4m3fn});
  });
}

BufferId BufferTable::unsharded(int unit, Pass pass) {
  const Unit& of = spec_.units[unit];
  return once(units_[unit].unsharded[static_cast<std::size_t>(pass)], [&] {
    return of_unit(Purpose::unsharded_params, unit, gathered_dtype(of, spec_.options.precision),
                   of.flat_elements());
  });
}

BufferId BufferTable::cast(int unit, Pass pass) {
  return once(units_[unit].cast[static_cast<std::size_t>(pass)], [&] {
    return of_unit(Purpose::cast_params, unit, spec_.options.precision.compute,
                   spec_.units[unit].flat_elements());
  });
}

BufferId BufferTable::partial_sum(std::vector<BufferId>& known, int sum, Buffer buffer) {
  if (std::ssize(known) <= sum) known.resize(static_cast<std::size_t>(sum) + 1, BufferId::none);
  if (sum > 0) buffer.name += fmt::format(", partial sum {}", sum);
  return once(known[static_cast<std::size_t>(sum)], [&] { return buffer; });
}

BufferId BufferTable::unsharded_gradient(int unit, int sum) {
  return partial_sum(
      units_[unit].unsharded_gradient, sum,
      of_unit(Purpose::unsharded_gradient, unit, written_gradient(spec_), spec_.units[unit].flat_elements()));
}

BufferId BufferTable::reduce_buffer(int unit) {
  return once(units_[unit].reduce_buffer, [&] {
    return of_unit(Purpose::reduce_buffer, unit, spec_.options.precision.reduce,
                   spec_.units[unit].flat_elements());
  });
}

BufferId BufferTable::sharded_gradient(int unit, int sum) {
  const Unit& of = spec_.units[unit];
  return partial_sum(units_[unit].sharded_gradient, sum,
                     of_unit(Purpose::sharded_gradient, unit, spec_.options.precision.gradient_shard,
                             of.shards > 1 ? of.shard_elements : of.part_elements()));
}

BufferId BufferTable::all_reduced_gradient(int unit, int sum) {
  const Unit& of = spec_.units[unit];
  if (of.shards == 1 || of.state_parts == 1) return sharded_gradient(unit, sum);
  Buffer part =
      of_unit(Purpose::sharded_gradient, unit, spec_.options.precision.gradient_shard, of.part_elements());
  part.name += ", part";
  return partial_sum(units_[unit].all_reduced_gradient, sum, part);
}

BufferId BufferTable::activation(int layer) {
  return once(layers_[layer].activation,
              [&] { return of_layer(Purpose::activation, layer, spec_.specs[layer].output); });
}

BufferId BufferTable::host_activation(int layer) {
  return once(layers_[layer].host_activation,
              [&] { return on_host(of_layer(Purpose::host_activation, layer, spec_.specs[layer].output)); });
}

BufferId BufferTable::returned_activation(int layer) {
  return once(layers_[layer].returned_activation,
              [&] { return of_layer(Purpose::activation, layer, spec_.specs[layer].output); });
}

BufferId BufferTable::residual_gradient() {
  return once(residual_gradient_, [&] {
    const auto& stream = spec_.specs.front().output;
    return Buffer{.purpose = Purpose::residual_gradient,
                  .dtype = stream.dtype,
                  .rows = stream.rows,
                  .cols = stream.cols};
  });
}

BufferId BufferTable::saved(int layer, int item) {
  return once(layers_[layer].saved[item],
              [&] { return of_layer(Purpose::saved, layer, spec_.specs[layer].saved[item]); });
}

BufferId BufferTable::host_saved(int layer, int item) {
  return once(layers_[layer].host_saved[item],
              [&] { return on_host(of_layer(Purpose::host_saved, layer, spec_.specs[layer].saved[item])); });
}

BufferId BufferTable::returned_saved(int layer, int item) {
  return once(layers_[layer].returned_saved[item],
              [&] { return of_layer(Purpose::saved, layer, spec_.specs[layer].saved[item]); });
}

BufferId BufferTable::forward_scratch(int layer, int item) {
  return once(layers_[layer].forward_scratch[item], [&] {
    return of_layer(Purpose::forward_scratch, layer, spec_.specs[layer].forward_scratch[item]);
  });
}

BufferId BufferTable::backward_scratch(int layer, int item) {
  return once(layers_[layer].backward_scratch[item], [&] {
    return of_layer(Purpose::backward_scratch, layer, spec_.specs[layer].backward_scratch[item]);
  });
}

BufferId BufferTable::workspace(device::Stream stream, std::int64_t bytes) {
  BufferId& known = workspace_[stream.index()];
  once(known, [&] { return untyped(Purpose::collective_workspace, bytes); });
  Buffer& buffer = program_[known];
  buffer.bytes = std::max(buffer.bytes, bytes);
  buffer.cols = buffer.bytes / 4;
  return known;
}

StreamedState BufferTable::streamed(int unit) {
  StreamedState& known = units_[unit].streamed;
  const auto& precision = spec_.options.precision;
  const auto make = [&](BufferId& id, DType dtype) {
    once(id,
         [&] { return of_unit(Purpose::streamed_state, unit, dtype, spec_.units[unit].part_elements()); });
  };
  if (placement_.host_master) make(known.master, placement_.own_master ? precision.master : precision.param);
  make(known.exp_avg, precision.moment);
  make(known.exp_avg_sq, precision.moment);
  if (placement_.host_shard && placement_.own_master) make(known.shard, precision.param);
  return known;
}

BufferId BufferTable::host_gradient(int unit) {
  return once(units_[unit].host_gradient, [&] {
    return on_host(of_unit(Purpose::host_gradient, unit, spec_.options.precision.gradient_shard,
                           spec_.units[unit].part_elements()));
  });
}

BufferId BufferTable::host_shard(int unit) {
  if (spec_.options.precision.master == spec_.options.precision.param) return BufferId::none;
  return once(units_[unit].host_shard, [&] {
    return on_host(
        of_unit(Purpose::host_shard, unit, spec_.options.precision.param, spec_.units[unit].part_elements()));
  });
}

}  // namespace llampi::fsdp
