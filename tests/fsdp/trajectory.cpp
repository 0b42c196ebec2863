#include "trajectory.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "llampi/core/half.hpp"

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

double read(const Tensor& tensor, std::int64_t i) {
  if (tensor.dtype == DType::float64) return tensor.as<double>()[i];
  if (tensor.dtype == DType::bfloat16)
    return from_bfloat16(static_cast<const std::uint16_t*>(tensor.data)[i]);
  if (tensor.dtype == DType::float16) return from_float16(static_cast<const std::uint16_t*>(tensor.data)[i]);
  return tensor.as<float>()[i];
}

void write(const Tensor& tensor, std::int64_t i, double value) {
  if (tensor.dtype == DType::float64) {
    tensor.as<double>()[i] = value;
  } else if (tensor.dtype == DType::bfloat16) {
    static_cast<std::uint16_t*>(tensor.data)[i] = to_bfloat16(static_cast<float>(value));
  } else if (tensor.dtype == DType::float16) {
    static_cast<std::uint16_t*>(tensor.data)[i] = to_float16(static_cast<float>(value));
  } else {
    tensor.as<float>()[i] = static_cast<float>(value);
  }
}

void set_initial(Engine& engine) {
  for (const auto& piece : engine.pieces_to_load()) {
    const auto& parameter = engine.model().parameters()[static_cast<std::size_t>(piece.parameter)];
    for (std::int64_t i = 0; i < piece.master.elements(); ++i)
      write(piece.master, i, oracle::initial_value(parameter, piece.begin + i));
  }
}

EngineOptions engine_options(const oracle::Fixture& fixture, const TrajectoryOptions& options,
                             std::int64_t slots, const Model& model) {
  EngineOptions result;
  result.batch = {slots, fixture.seq_len};
  result.micro_batches = options.accumulation;
  result.strategy = options.strategy;
  result.wrap = options.wrap;
  result.backward_prefetch = options.backward_prefetch;
  result.forward_prefetch = options.forward_prefetch;
  result.limit_all_gathers = options.limit;
  result.shard_group_size = options.shard_group_size;
  result.accumulate_unsharded = options.unsharded;
  result.checkpointing = options.checkpointing;
  result.precision = options.precision;
  if (options.float64) {
    result.precision = {DType::float64, DType::float64, DType::float64,
                        DType::float64, DType::float64, DType::float64};
  }
  result.adamw = {fixture.training.beta1, fixture.training.beta2, fixture.training.eps};
  result.clip_grad_norm = fixture.max_grad_norm;
  result.offload = options.offload;
  auto rules = fixture.rules;
  if (!options.frozen.empty()) rules.frozen = options.frozen;
  result.groups = parameter_groups(model.parameters(), rules);
  return result;
}

}  // namespace

std::map<std::string, std::vector<double>> whole_parameters(World& world, const Engine& engine) {
  std::map<std::string, std::vector<double>> whole;
  for (const auto& p : engine.model().parameters())
    whole[p.name].resize(static_cast<std::size_t>(p.elements()));
  for (const auto& piece : engine.pieces_to_save()) {
    auto& values = whole[engine.model().parameters()[static_cast<std::size_t>(piece.parameter)].name];
    for (std::int64_t i = 0; i < piece.master.elements(); ++i)
      values[static_cast<std::size_t>(piece.begin + i)] += read(piece.master, i);
  }
  for (auto& [name, values] : whole) world.sum(values);
  return whole;
}

TrainingRun::TrainingRun(World& world, const oracle::Fixture& fixture, const TrajectoryOptions& options)
    : world_(world),
      fixture_(fixture),
      options_(options),
      model_(make_llama(fixture.config)),
      device_(options.float64 ? make_reference_device() : make_cpu_device(1)),
      slots_((fixture.global_batch + world.size() * options.accumulation - 1) /
             (world.size() * options.accumulation)),
      schedule_{Decay::cosine, fixture.training.lr, fixture.training.min_lr, fixture.training.warmup_steps,
                fixture.training.steps},
      engine_(std::make_unique<Engine>(*model_, *device_, world,
                                       engine_options(fixture, options, slots_, *model_))) {
  set_initial(*engine_);
  if (options.observed)
    engine_->observe([this](const Action&, int, Moment moment) { observed_ += moment == Moment::end; });
}

TrainingRun::Inputs TrainingRun::inputs(std::int64_t t) const {
  const std::int64_t global_batch = fixture_.global_batch;
  const std::int64_t steps_of_stream =
      (static_cast<std::int64_t>(fixture_.tokens.size()) - 1) / (fixture_.seq_len * global_batch);
  Inputs inputs{{}, {schedule_.at(t), t, 0, options_.loss_scale}};
  for (int m = 0; m < options_.accumulation; ++m) {
    std::vector<std::int64_t> mine;
    for (std::int64_t i = 0; i < slots_; ++i) {
      const std::int64_t sample = (m * world_.size() + world_.rank()) * slots_ + i;
      if (sample < global_batch) mine.push_back((t - 1) % steps_of_stream * global_batch + sample);
    }
    inputs.micro_batches.push_back(padded_batch(fixture_, mine, slots_));
    inputs.step.valid_labels += inputs.micro_batches.back().valid_labels;
  }
  world_.sum(std::span(&inputs.step.valid_labels, 1));
  return inputs;
}

TrainingRun::Result TrainingRun::step(const Inputs& inputs) {
  if (options_.poison) engine_->poison_transients();
  const auto result = engine_->step(inputs.micro_batches, inputs.step);
  double loss = result.loss_sum;
  world_.sum(std::span(&loss, 1));
  return {loss / static_cast<double>(inputs.step.valid_labels), result.grad_norm};
}

Trajectory run_trajectory(World& world, const oracle::Fixture& fixture, const TrajectoryOptions& options) {
  TrainingRun run(world, fixture, options);
  Trajectory trajectory;
  for (std::int64_t t = 1; t <= fixture.training.steps; ++t) {
    const auto result = run.step(t);
    trajectory.losses.push_back(result.loss);
    trajectory.grad_norms.push_back(result.grad_norm);
  }
  trajectory.final_parameters = whole_parameters(world, run.engine());
  EXPECT_EQ(run.engine().high_water(), run.engine().compiled().arena_bytes) << "the plan is exact";
  EXPECT_EQ(run.observed() > 0, options.observed);
  return trajectory;
}

}  // namespace llampi
