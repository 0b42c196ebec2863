// SPDX-License-Identifier: Apache-2.0
#include "support/trajectory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/core/exact_sum.hpp"
#include "llampi/core/half.hpp"
#include "llampi/core/int8_blocks.hpp"
#include "llampi/device/device.hpp"
#include "llampi/device/host_batch.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/model/model.hpp"
#include "llampi/optim/parameter_groups.hpp"
#include "llampi/optim/schedule.hpp"

namespace llampi::test {
namespace {

using namespace fsdp;

/// A micro-batch with `slots` sequences, the first of them given, the others empty.
device::HostBatch padded_batch(const oracle::Fixture& fixture, std::span<const std::int64_t> samples,
                               std::int64_t slots) {
  const std::int64_t S = fixture.seq_len;
  device::HostBatch batch(slots * S);
  std::fill(batch.labels().begin(), batch.labels().end(), -1);
  std::vector<std::int32_t> offsets = {0};
  for (std::int64_t s = 0; s < slots; ++s) {
    if (s < static_cast<std::int64_t>(samples.size())) {
      device::HostBatch one = fixture.batch(samples.subspan(static_cast<std::size_t>(s), 1));
      std::copy(one.tokens().begin(), one.tokens().end(), batch.tokens().begin() + s * S);
      std::copy(one.labels().begin(), one.labels().end(), batch.labels().begin() + s * S);
      std::copy(one.positions().begin(), one.positions().end(), batch.positions().begin() + s * S);
      for (std::int64_t i = 1; i <= one.documents; ++i) {
        offsets.push_back(static_cast<std::int32_t>(s * S) + one.cu_seqlens()[static_cast<std::size_t>(i)]);
      }
      batch.valid_labels += one.valid_labels;
    } else {
      for (std::int64_t t = 0; t < S; ++t)
        batch.positions()[static_cast<std::size_t>(s * S + t)] = static_cast<std::int32_t>(t);
      offsets.push_back(static_cast<std::int32_t>((s + 1) * S));
    }
  }
  std::copy(offsets.begin(), offsets.end(), batch.cu_seqlens().begin());
  batch.documents = static_cast<std::int64_t>(offsets.size()) - 1;
  return batch;
}

std::vector<double> read(device::Device& device, const Tensor& tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
  device.download(bytes.data(), tensor, device::Stream::compute);
  device.synchronize(device::Stream::compute);
  std::vector<double> values(static_cast<std::size_t>(tensor.elements()));
  const auto convert = [&]<class T>(const T* from, auto widen) {
    std::transform(from, from + values.size(), values.begin(), widen);
  };
  const auto* halves = reinterpret_cast<const std::uint16_t*>(bytes.data());
  const auto same = [](auto value) { return static_cast<double>(value); };
  if (tensor.dtype == DType::float64) convert(reinterpret_cast<const double*>(bytes.data()), same);
  if (tensor.dtype == DType::float32) convert(reinterpret_cast<const float*>(bytes.data()), same);
  if (tensor.dtype == DType::bfloat16) convert(halves, from_bfloat16);
  if (tensor.dtype == DType::float16) convert(halves, from_float16);
  return values;
}

void write(device::Device& device, const Tensor& tensor, const std::vector<double>& values) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
  auto* halves = reinterpret_cast<std::uint16_t*>(bytes.data());
  if (tensor.dtype == DType::int8_blocks) {
    const std::vector<float> singles(values.begin(), values.end());
    to_int8_blocks(singles.data(), tensor.elements(), reinterpret_cast<Int8Block*>(bytes.data()));
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto single = static_cast<float>(values[i]);
    if (tensor.dtype == DType::float64) reinterpret_cast<double*>(bytes.data())[i] = values[i];
    if (tensor.dtype == DType::float32) reinterpret_cast<float*>(bytes.data())[i] = single;
    if (tensor.dtype == DType::bfloat16) halves[i] = to_bfloat16(single);
    if (tensor.dtype == DType::float16) halves[i] = to_float16(single);
  }
  device.upload(tensor, bytes.data(), device::Stream::compute);
  device.synchronize(device::Stream::compute);
}

void set_initial(device::Device& device, const oracle::Fixture& fixture, const TrajectoryOptions& options,
                 Engine& engine) {
  for (const auto& piece : engine.pieces_to_load()) {
    const auto& parameter = engine.model().parameters()[static_cast<std::size_t>(piece.parameter)];
    std::vector<double> values;
    if (options.change_initial) {
      for (std::int64_t i = 0; i < parameter.elements(); ++i)
        values.push_back(fixture.initial_value(parameter, i));
      options.change_initial(parameter, values);
      values = {values.begin() + piece.begin, values.begin() + piece.begin + piece.master.elements()};
    } else {
      for (std::int64_t i = 0; i < piece.master.elements(); ++i)
        values.push_back(fixture.initial_value(parameter, piece.begin + i));
    }
    write(device, piece.master, values);
  }
}

EngineOptions engine_options(const oracle::Fixture& fixture, const TrajectoryOptions& options,
                             std::int64_t slots, const model::Model& model) {
  EngineOptions result;
  result.batch = {.sequences = slots, .seq_len = fixture.seq_len, .attention_room = options.attention_room};
  result.micro_batches = options.accumulation;
  result.strategy = options.strategy;
  result.wrap = options.wrap;
  result.backward_prefetch = options.backward_prefetch;
  result.forward_prefetch = options.forward_prefetch;
  result.limit_all_gathers = options.limit;
  result.shard_group_size = options.shard_group_size;
  result.shard_optimizer_over_replicas = options.state_over_replicas;
  result.accumulate_unsharded = options.unsharded;
  result.sum_order = options.sum_order;
  result.reduction = options.reduction;
  result.all_reduce_stream = options.all_reduce_stream;
  result.checkpointing = options.checkpointing;
  result.precision = options.precision;
  if (options.float64) {
    result.precision = {DType::float64, DType::float64, DType::float64,
                        DType::float64, DType::float64, DType::float64};
  }
  result.adamw = {fixture.training.beta1, fixture.training.beta2, fixture.training.eps};
  result.clip_grad_norm = fixture.max_grad_norm;
  result.offload = options.offload;
  result.graph = options.graph;
  result.graph_nodes = options.graph_nodes;
  result.snapshot = options.snapshot;
  result.saves_frozen = options.saves_frozen;
  auto rules = fixture.rules;
  if (!options.frozen.empty()) rules.frozen = options.frozen;
  result.parameter_groups = optim::parameter_groups(model.parameters(), rules);
  return result;
}

/// Overwrites everything that is not persistent with bytes of NaN.
void poison_transients(device::Device& device, const Engine& engine) {
  for (const Program* program : {&engine.compiled().step, &engine.compiled().evaluation}) {
    for (const auto& buffer : program->buffers) {
      if (buffer.persistent) continue;
      const Tensor memory = engine.memory().at(buffer);
      const std::vector<unsigned char> ones(static_cast<std::size_t>(buffer.bytes), 0xFF);
      device.upload({memory.data, DType::int32, 1, buffer.bytes / 4}, ones.data(), device::Stream::compute);
      device.synchronize(device::Stream::compute);
    }
  }
}

std::optional<model::Fp8Recipe> fp8_recipe(const oracle::Fixture& fixture, const TrajectoryOptions& options) {
  if (!fixture.fp8.on || options.without_fp8) return {};
  return model::Fp8Recipe{fixture.fp8.gradient_dtype, fixture.fp8.scales};
}

}  // namespace

std::map<std::string, std::vector<double>> whole_parameters(comm::World& world, device::Device& device,
                                                            const Engine& engine) {
  std::map<std::string, std::vector<double>> whole;
  for (const auto& p : engine.model().parameters())
    whole[p.name].resize(static_cast<std::size_t>(p.elements()));
  for (const auto& piece : engine.pieces_to_save()) {
    auto& values = whole[engine.model().parameters()[static_cast<std::size_t>(piece.parameter)].name];
    const auto read_values = read(device, piece.master);
    std::transform(read_values.begin(), read_values.end(), values.begin() + piece.begin,
                   values.begin() + piece.begin, std::plus<>());
  }
  for (auto& [name, values] : whole) world.sum(values);
  return whole;
}

TrainingRun::TrainingRun(comm::World& world, const oracle::Fixture& fixture, const TrajectoryOptions& options)
    : world_(world),
      fixture_(fixture),
      options_(options),
      model_(model::make_llama(fixture.config, fp8_recipe(fixture, options), fixture.lora)),
      device_(options.float64 ? device::make_reference_device() : device::make_cpu_device(1)),
      global_batch_(options.global_batch > 0 ? options.global_batch : fixture.global_batch),
      slots_((global_batch_ + world.size() * options.accumulation - 1) /
             (world.size() * options.accumulation)),
      schedule_{optim::Decay::cosine, fixture.training.lr, fixture.training.min_lr,
                fixture.training.warmup_steps, fixture.training.steps},
      engine_(std::make_unique<Engine>(*model_, device(), options.machine ? options.machine->host : *device_,
                                       options.machine ? options.machine->world : world,
                                       engine_options(fixture, options, slots_, *model_))) {
  set_initial(device(), fixture, options, *engine_);
  if (options.observed)
    engine_->observe(
        [this](const Action&, int, Moment moment, double) { observed_ += moment == Moment::end; });
}

TrainingRun::Inputs TrainingRun::inputs(std::int64_t t) const {
  const std::int64_t samples = (static_cast<std::int64_t>(fixture_.tokens.size()) - 1) / fixture_.seq_len;
  const std::int64_t steps_of_stream = std::max<std::int64_t>(samples / global_batch_, 1);
  const StepShape shape = step_shape(engine_->options(), engine_->mesh());
  Inputs inputs{{}, {schedule_.at(t), t, 0, options_.loss_scale}};
  for (int m = 0; m < options_.accumulation; ++m) {
    std::vector<std::int64_t> mine;
    const std::int64_t first = micro_batch_number(shape, engine_->mesh(), world_.rank(), m) * slots_;
    for (std::int64_t i = 0; i < slots_; ++i) {
      const std::int64_t sample = first + i;
      if (sample < global_batch_)
        mine.push_back(((t - 1) % steps_of_stream * global_batch_ + sample) % samples);
    }
    inputs.micro_batches.push_back(padded_batch(fixture_, mine, slots_));
    inputs.micro_batches.back().set_first_sample((t - 1) * global_batch_ + first);
    inputs.step.valid_labels += inputs.micro_batches.back().valid_labels;
  }
  world_.sum(std::span(&inputs.step.valid_labels, 1));
  agree_on_documents(inputs);
  return inputs;
}

void TrainingRun::agree_on_documents(Inputs& inputs) const {
  inputs.step.counts = device::largest_counts(inputs.micro_batches);
  comm::max_members(world_, inputs.step.counts);
}

TrainingRun::Result TrainingRun::step(const Inputs& given) {
  Inputs inputs = given;  // a test may have changed the micro-batches
  agree_on_documents(inputs);
  if (options_.drop > 0) {
    int asked = 0;
    engine_->ask_before_micro_batches([&] { return ++asked == options_.drop; });
    EXPECT_TRUE(engine_->step(inputs.micro_batches, inputs.step).aborted);
    EXPECT_EQ(asked, options_.drop);
    engine_->ask_before_micro_batches({});
  }
  if (options_.poison) poison_transients(device(), *engine_);
  const auto result = engine_->step(inputs.micro_batches, inputs.step);
  ExactSum losses;
  for (const double loss : result.loss_sums) losses.add(loss);
  world_.sum(losses.words());
  return {losses.value() / static_cast<double>(inputs.step.valid_labels), result.grad_norm, result.fp8};
}

Trajectory run_trajectory(comm::World& world, const oracle::Fixture& fixture,
                          const TrajectoryOptions& options) {
  TrainingRun run(world, fixture, options);
  Trajectory trajectory;
  for (std::int64_t t = 1; t <= fixture.training.steps; ++t) {
    const auto result = run.step(t);
    trajectory.losses.push_back(result.loss);
    trajectory.fp8_saturated += result.fp8.saturated;
    trajectory.grad_norms.push_back(result.grad_norm);
  }
  trajectory.final_parameters = whole_parameters(world, run.device(), run.engine());
  EXPECT_EQ(run.engine().memory().used(), run.engine().compiled().arena_bytes) << "the plan is exact";
  EXPECT_EQ(run.observed() > 0, options.observed);
  return trajectory;
}

}  // namespace llampi::test
