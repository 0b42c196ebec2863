#include "trajectory.hpp"

#include <algorithm>

#include "llampi/optim/schedule.hpp"

namespace llampi {
namespace {

/// A micro-batch with `slots` sequences, the first of them given, the others empty.
HostBatch padded_batch(const oracle::Fixture& fixture, std::span<const std::int64_t> samples,
                       std::int64_t slots) {
  const std::int64_t S = fixture.seq_len;
  HostBatch batch(slots * S);
  std::fill(batch.labels().begin(), batch.labels().end(), -1);
  std::vector<std::int32_t> offsets = {0};
  for (std::int64_t s = 0; s < slots; ++s) {
    if (s < static_cast<std::int64_t>(samples.size())) {
      HostBatch one = fixture.batch(samples.subspan(static_cast<std::size_t>(s), 1));
      std::copy(one.tokens().begin(), one.tokens().end(), batch.tokens().begin() + s * S);
      std::copy(one.labels().begin(), one.labels().end(), batch.labels().begin() + s * S);
      std::copy(one.positions().begin(), one.positions().end(), batch.positions().begin() + s * S);
      for (std::int64_t i = 1; i <= one.segments; ++i) {
        offsets.push_back(static_cast<std::int32_t>(s * S) +
                          one.segment_offsets()[static_cast<std::size_t>(i)]);
      }
      batch.valid_labels += one.valid_labels;
    } else {
      for (std::int64_t t = 0; t < S; ++t)
        batch.positions()[static_cast<std::size_t>(s * S + t)] = static_cast<std::int32_t>(t);
      offsets.push_back(static_cast<std::int32_t>((s + 1) * S));
    }
  }
  std::copy(offsets.begin(), offsets.end(), batch.segment_offsets().begin());
  batch.segments = static_cast<std::int64_t>(offsets.size()) - 1;
  return batch;
}

void set_initial(Engine& engine) {
  for (const auto& piece : engine.pieces_to_load()) {
    const auto& parameter = engine.model().parameters()[static_cast<std::size_t>(piece.parameter)];
    for (std::int64_t i = 0; i < piece.master.elements(); ++i) {
      const double value = oracle::initial_value(parameter, piece.begin + i);
      if (piece.master.dtype == DType::float64) {
        piece.master.as<double>()[i] = value;
      } else {
        piece.master.as<float>()[i] = static_cast<float>(value);
      }
    }
  }
}

std::map<std::string, std::vector<double>> whole_parameters(World& world, const Engine& engine) {
  std::map<std::string, std::vector<double>> whole;
  for (const auto& p : engine.model().parameters())
    whole[p.name].resize(static_cast<std::size_t>(p.elements()));
  for (const auto& piece : engine.pieces_to_save()) {
    auto& values = whole[engine.model().parameters()[static_cast<std::size_t>(piece.parameter)].name];
    for (std::int64_t i = 0; i < piece.master.elements(); ++i) {
      values[static_cast<std::size_t>(piece.begin + i)] +=
          piece.master.dtype == DType::float64 ? piece.master.as<double>()[i] : piece.master.as<float>()[i];
    }
  }
  for (auto& [name, values] : whole) world.sum(values);
  return whole;
}

}  // namespace

Trajectory run_trajectory(World& world, const oracle::Fixture& fixture, const TrajectoryOptions& options) {
  const auto model = make_llama(fixture.config);
  const auto device = options.float64 ? make_reference_device() : make_cpu_device(1);
  const std::int64_t parts = world.size() * options.accumulation;
  const std::int64_t slots = (fixture.global_batch + parts - 1) / parts;

  EngineOptions engine_options;
  engine_options.batch = {slots, fixture.seq_len};
  engine_options.micro_batches = options.accumulation;
  engine_options.strategy = options.strategy;
  engine_options.backward_prefetch = options.backward_prefetch;
  engine_options.forward_prefetch = options.forward_prefetch;
  engine_options.limit_all_gathers = options.limit;
  if (options.float64)
    engine_options.precision = {DType::float64, DType::float64, DType::float64, DType::float64};
  engine_options.adamw = {fixture.training.beta1, fixture.training.beta2, fixture.training.eps};
  engine_options.clip_grad_norm = fixture.max_grad_norm;
  engine_options.groups = parameter_groups(model->parameters(), fixture.training.weight_decay, "");
  Engine engine(*model, *device, world, engine_options);
  set_initial(engine);

  const LearningRateSchedule schedule{Decay::cosine, fixture.training.lr, fixture.training.min_lr,
                                      fixture.training.warmup_steps, fixture.training.steps};
  Trajectory trajectory;
  for (std::int64_t step = 1; step <= fixture.training.steps; ++step) {
    std::vector<HostBatch> batches;
    std::int64_t valid = 0;
    for (int m = 0; m < options.accumulation; ++m) {
      std::vector<std::int64_t> mine;
      for (std::int64_t i = 0; i < slots; ++i) {
        const std::int64_t sample = (m * world.size() + world.rank()) * slots + i;
        if (sample < fixture.global_batch) mine.push_back((step - 1) * fixture.global_batch + sample);
      }
      batches.push_back(padded_batch(fixture, mine, slots));
      valid += batches.back().valid_labels;
    }
    world.sum(std::span(&valid, 1));
    if (options.poison) engine.poison_transients();
    const auto result = engine.step(batches, {schedule.at(step), step, valid});
    double loss = result.loss_sum;
    world.sum(std::span(&loss, 1));
    trajectory.losses.push_back(loss / static_cast<double>(valid));
    trajectory.grad_norms.push_back(result.grad_norm);
  }
  trajectory.final_parameters = whole_parameters(world, engine);
  return trajectory;
}

}  // namespace llampi
