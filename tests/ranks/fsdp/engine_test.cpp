// SPDX-License-Identifier: Apache-2.0
// Training on 1, 2, 3, 4 and 8 ranks against ten steps of PyTorch in float64 (tests/oracle).
#include <gtest/gtest.h>

#include <cmath>

#include "llampi/comm/comm.hpp"
#include "llampi/core/philox.hpp"
#include "llampi/device/host_batch.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/optim/parameter_groups.hpp"
#include "support/documents_apart.hpp"
#include "support/expect_trajectory.hpp"
#include "support/mpi_test.hpp"

namespace llampi::test {
namespace {

using namespace fsdp;

// float64: sums of some thousand terms; ten steps of AdamW, whose first steps divide by the size of the
// gradient, amplify rounding by about as much as in float32: 1e-16 * (3e-6 / 6e-8) = 5e-15, and three digits
// of room.
constexpr Tolerance kFloat64Tolerance = {1e-11, 1e-11, 1e-11, 5e-12};

class Trajectories : public ::testing::TestWithParam<std::string> {
 protected:
  oracle::Fixture fixture_ = oracle::load(GetParam());
};

TEST_P(Trajectories, EqualPyTorch) {
  for (const int accumulation : {1, 4}) {
    const auto full = run_trajectory(test_world(), fixture_, {.accumulation = accumulation});
    expect_oracle(full, fixture_, kFloat32Tolerance);
    const auto none = run_trajectory(test_world(), fixture_,
                                     {.strategy = Strategy::no_shard, .accumulation = accumulation});
    expect_same_bits(full, none, "full_shard and no_shard");
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, Trajectories, ::testing::ValuesIn(oracle::fixture_names()),
                         [](const auto& test) { return test.param; });

class Scheduling : public ::testing::TestWithParam<const char*> {};

TEST_P(Scheduling, DoesNotChangeBits) {
  auto& world = test_world();
  auto fixture = oracle::load(GetParam());
  fixture.training.steps = 4;  // bits that differ do so at once
  const auto base = run_trajectory(world, fixture, {.accumulation = 2});
  expect_same_bits(base, run_trajectory(world, fixture, {.accumulation = 2}), "repeated");
  expect_same_bits(base, run_trajectory(world, fixture, {.accumulation = 2, .poison = true}),
                   "poisoned memory");
  expect_same_bits(
      base, run_trajectory(world, fixture, {.accumulation = 2, .backward_prefetch = Prefetch::post}), "post");
  expect_same_bits(
      base,
      run_trajectory(
          world, fixture,
          {.accumulation = 2, .backward_prefetch = Prefetch::none, .forward_prefetch = false, .limit = 1}),
      "no prefetch");
  expect_same_bits(base, run_trajectory(world, fixture, {.accumulation = 2, .limit = 3}), "limit 3");
  for (const BlockCheckpointing& checkpointing :
       {BlockCheckpointing(Checkpointing::full), BlockCheckpointing(Checkpointing::selective),
        BlockCheckpointing(Checkpointing::feed_forward),
        BlockCheckpointing(Checkpointing::feed_forward, 1, Checkpointing::none),
        BlockCheckpointing(Checkpointing::offload),
        BlockCheckpointing(Checkpointing::full, 1, Checkpointing::selective)}) {
    TrajectoryOptions options{.accumulation = 2, .poison = true, .checkpointing = checkpointing};
    expect_same_bits(base, run_trajectory(world, fixture, options), "recomputation");
    options.offload.residuals = true;
    expect_same_bits(base, run_trajectory(world, fixture, options), "residuals in host memory");
  }
  expect_same_bits(base,
                   run_trajectory(world, fixture, {.strategy = Strategy::shard_grad_op, .accumulation = 2}),
                   "shard_grad_op");
}

INSTANTIATE_TEST_SUITE_P(Engine, Scheduling,
                         ::testing::Values("documents", "gqa_tied", "qwen2", "qwen3", "mistral_window"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Engine, ADroppedStepLeavesNoTrace) {
  auto& world = test_world();
  auto fixture = oracle::load("documents");
  fixture.training.steps = 4;
  for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard}) {
    for (const bool params : {false, true}) {
      for (const bool unsharded : {false, true}) {
        if (unsharded && params) continue;
        const Offload offload{.optimizer = params, .params = params};
        const TrajectoryOptions whole{.strategy = strategy,
                                      .accumulation = 3,
                                      .poison = true,
                                      .unsharded = unsharded,
                                      .offload = offload};
        auto dropped = whole;
        const auto expected = run_trajectory(world, fixture, whole);
        for (dropped.drop = 1; dropped.drop < 3; ++dropped.drop)
          expect_same_bits(expected, run_trajectory(world, fixture, dropped), "dropped and redone");
      }
    }
  }
}

TEST(Engine, DocumentsDoNotFeelEachOther) {
  expect_documents_apart(test_world(), oracle::load("documents"), {.accumulation = 2, .poison = true});
  expect_documents_apart(test_world(), oracle::load("gqa_tied"), {.float64 = true});
}

TEST(Engine, HybridStrategiesEqualPyTorch) {
  auto& world = test_world();
  for (const int group : {1, 2, 3, 4}) {
    if (world.size() % group != 0 || world.size() == group) continue;
    for (const auto strategy : {Strategy::hybrid_shard, Strategy::hybrid_shard_zero2}) {
      for (const auto* name : {"documents", "gqa_tied", "qwen2", "qwen3", "mistral_window"}) {
        const auto fixture = oracle::load(name);
        const TrajectoryOptions options{
            .strategy = strategy, .accumulation = 2, .poison = true, .shard_group_size = group};
        const auto first = run_trajectory(world, fixture, options);
        expect_oracle(first, fixture, kFloat32Tolerance);
        expect_same_bits(first, run_trajectory(world, fixture, options), "repeated");
      }
    }
  }
}

TEST(Engine, HybridIsRefusedWhereItCannotBeDone) {
  auto& world = test_world();
  const auto fixture = oracle::load("documents");
  for (const int group : {0, world.size(), 5}) {  // one node only; one group only; does not divide
    EXPECT_THROW(
        run_trajectory(world, fixture, {.strategy = Strategy::hybrid_shard, .shard_group_size = group}),
        UserError);
  }
}

TEST(Engine, UnshardedAccumulationEqualsPyTorch) {
  auto& world = test_world();
  for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard}) {
    for (const auto* name : {"documents", "gqa_tied", "qwen2", "qwen3", "mistral_window"}) {
      const auto fixture = oracle::load(name);
      expect_oracle(
          run_trajectory(world, fixture,
                         {.strategy = strategy, .accumulation = 3, .poison = true, .unsharded = true}),
          fixture, kFloat32Tolerance);
    }
  }
}

TEST(Engine, Float64OnTheReferenceDeviceEqualsPyTorch) {
  for (const auto* name : {"one_layer_one_head", "documents", "lora_some"}) {
    const auto fixture = oracle::load(name);
    expect_oracle(run_trajectory(test_world(), fixture, {.float64 = true}), fixture, kFloat64Tolerance);
  }
}

TEST(Engine, ExecutesExactlyTheCompiledList) {
  auto& world = test_world();
  const auto fixture = oracle::load("one_layer_one_head");
  const auto model = model::make_llama(fixture.config);
  const auto device = device::make_cpu_device(1);
  EngineOptions options;
  options.batch = {2, fixture.seq_len};
  options.micro_batches = 2;
  options.parameter_groups = optim::parameter_groups(model->parameters(), {.weight_decay = 0.1});
  Engine engine(*model, *device, world, options);
  engine.initialise(1);
  std::vector<Action> seen;
  int ended = 0;
  engine.observe([&](const Action& action, int, Moment moment, double) {
    if (moment == Moment::begin) {
      seen.push_back(action);
    } else {
      ++ended;
    }
  });
  const std::vector<std::int64_t> samples = {0, 1};
  const std::vector<device::HostBatch> batches = {fixture.batch(samples), fixture.batch(samples)};
  engine.step(batches, {1e-3, 1, 4 * world.size() * fixture.seq_len});
  EXPECT_EQ(seen, engine.compiled().step.actions);
  EXPECT_EQ(ended, static_cast<int>(seen.size()));
  seen.clear();
  engine.evaluate(batches[0]);
  EXPECT_EQ(seen, engine.compiled().evaluation.actions);
}

TEST(Engine, InitialValuesDoNotDependOnRanksOrStrategy) {
  auto& world = test_world();
  const auto fixture = oracle::load("gqa_tied");
  const auto model = model::make_llama(fixture.config);
  const auto device = device::make_cpu_device(1);
  for (const auto strategy : {Strategy::full_shard, Strategy::no_shard}) {
    EngineOptions options;
    options.batch = {1, 8};
    options.training = false;
    options.strategy = strategy;
    Engine engine(*model, *device, world, options);
    engine.initialise(7);
    std::vector<double> sums(2);  // a checksum that does not depend on who holds what
    for (const auto& piece : engine.pieces_to_save()) {
      for (std::int64_t i = 0; i < piece.master.elements(); ++i) {
        sums[0] += std::ldexp(std::floor(std::ldexp(piece.master.as<float>()[i], 20)), -20);
        sums[1] += 1;
      }
    }
    world.sum(sums);
    std::int64_t elements = 0;
    for (const auto& p : model->parameters()) elements += p.elements();
    EXPECT_EQ(sums[1], static_cast<double>(elements));
    // Norm weights are ones, the others have mean zero: the sum is that of the ones within 5 standard
    // deviations.
    std::int64_t ones = 0;
    for (const auto& p : model->parameters()) ones += p.shape.size() == 1 ? p.elements() : 0;
    EXPECT_NEAR(sums[0], static_cast<double>(ones), 5 * 0.02 * std::sqrt(static_cast<double>(elements)));
    // The same for every number of ranks, which are other processes: drawn here once more, one by one.
    double expected = 0;
    for (const auto& p : model->parameters()) {
      const RandomStream random(7, "init " + p.name);
      for (std::int64_t i = 0; i < p.elements(); ++i) {
        const double value = p.shape.size() == 1 ? 1.0 : 0.02 * random.normal(static_cast<std::uint64_t>(i));
        expected += std::ldexp(std::floor(std::ldexp(static_cast<float>(value), 20)), -20);
      }
    }
    EXPECT_EQ(sums[0], expected);
  }
}

TEST(Engine, WhatCannotFitIsRefusedBeforeItIsAllocated) {
  const auto fixture = oracle::load("mqa");
  auto config = fixture.config;
  config.vocab_size = 1'000'000'000;  // the embedding alone is hundreds of GB
  const auto model = model::make_llama(config);
  const auto device = device::make_cpu_device(1);
  EngineOptions options;
  options.batch = {1, 8};
  options.parameter_groups = optim::parameter_groups(model->parameters(), {.weight_decay = 0.1});
  EXPECT_THROW(Engine(*model, *device, test_world(), options), UserError);
}

TEST(Engine, EvaluationLeavesTrainingUntouched) {
  auto& world = test_world();
  const auto fixture = oracle::load("mqa");
  const auto model = model::make_llama(fixture.config);
  const auto device = device::make_cpu_device(1);
  const std::vector<std::int64_t> samples = {0};
  const std::vector<device::HostBatch> batches = {fixture.batch(samples)};
  const auto run = [&](bool evaluate) {
    EngineOptions options;
    options.batch = {1, fixture.seq_len};
    options.parameter_groups = optim::parameter_groups(model->parameters(), {.weight_decay = 0.1});
    Engine engine(*model, *device, world, options);
    engine.initialise(3);
    std::vector<double> losses;
    for (int step = 1; step <= 3; ++step) {
      if (evaluate) {
        const double loss = engine.evaluate(batches[0]);
        losses.push_back(engine.step(batches, {1e-3, step, world.size() * batches[0].valid_labels}).loss_sum);
        EXPECT_EQ(loss, losses.back()) << "the same arithmetic forward only";
        engine.logits(batches[0], 3);
      } else {
        losses.push_back(engine.step(batches, {1e-3, step, world.size() * batches[0].valid_labels}).loss_sum);
      }
    }
    return losses;
  };
  EXPECT_EQ(run(true), run(false));
}

}  // namespace
}  // namespace llampi::test
