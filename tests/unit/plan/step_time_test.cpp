// SPDX-License-Identifier: Apache-2.0
// The clock that a list of actions runs on, with lists that can be timed by hand, and with compiled ones.
#include "llampi/plan/step_time.hpp"

#include <gtest/gtest.h>
#include <functional>

#include <vector>

#include "llampi/core/error.hpp"
#include "llampi/fsdp/added_work.hpp"
#include "llampi/fsdp/streams.hpp"
#include "llampi/model/llama.hpp"

namespace llampi::test {
namespace {

using namespace plan;
using device::Stream;
using fsdp::Op;

/// A list and what its actions take.
class List {
 public:
  List& add(Op op, Stream stream, Phases phases, std::vector<int> waits = {}) {
    actions_.push_back({.op = op, .stream = stream, .waits = std::move(waits)});
    phases_.push_back(std::move(phases));
    return *this;
  }
  List& compute(double seconds, std::vector<int> waits = {}) {
    return add(Op::forward, Stream::compute, {{Resource::device, 0, seconds}}, std::move(waits));
  }
  List& gather(Phases phases, std::vector<int> waits = {}) {
    return add(Op::unshard, fsdp::kUnshardStream, std::move(phases), std::move(waits));
  }
  List& reduce(Phases phases, std::vector<int> waits = {}) {
    return add(Op::reduce, fsdp::kReduceStream, std::move(phases), std::move(waits));
  }
  StepTime time(bool shares_communicators = false) const {
    return time_of_step(actions_, phases_, shares_communicators);
  }

 private:
  std::vector<fsdp::Action> actions_;
  std::vector<Phases> phases_;
};

TEST(StepTime, CommunicationGoesOnBesideComputation) {
  const StepTime time = List()
                            .gather({{Resource::in_node, 0, 2}})       // until 2
                            .gather({{Resource::in_node, 0, 5}})       // until 7
                            .compute(3, {0})                           // 2 to 5
                            .compute(4, {1})                           // 7 to 11
                            .reduce({{Resource::in_node, 0, 1}}, {3})  // until 12
                            .time();
  EXPECT_DOUBLE_EQ(time.seconds, 12);
  EXPECT_DOUBLE_EQ(time.compute_seconds, 7);
  EXPECT_DOUBLE_EQ(time.waiting_seconds(), 5);
}

TEST(StepTime, WhatSharesLinksTakesLonger) {
  // both until 4, at half the bandwidth each; then the second has 3 left
  EXPECT_DOUBLE_EQ(
      List().gather({{Resource::in_node, 0, 2}}).reduce({{Resource::in_node, 0, 5}}).time().seconds, 7);
  EXPECT_DOUBLE_EQ(
      List().gather({{Resource::in_node, 0, 2}}).reduce({{Resource::between_nodes, 0, 5}}).time().seconds, 5);
  EXPECT_DOUBLE_EQ(List().gather({{Resource::own, 0, 2}}).reduce({{Resource::own, 0, 5}}).time().seconds, 5);
  EXPECT_DOUBLE_EQ(
      List().gather({{Resource::in_node, 2, 0}}).reduce({{Resource::in_node, 5, 0}}).time().seconds, 5);
  // The latency of the first is over at 1; they share until 5, when it has all of its 2; then 1 of the second's is left.
  EXPECT_DOUBLE_EQ(
      List().gather({{Resource::in_node, 1, 2}}).reduce({{Resource::in_node, 0, 4}}).time().seconds, 6);
}

TEST(StepTime, CollectivesThatShareCommunicatorsAreOneAfterAnother) {
  const List list = List().gather({{Resource::in_node, 0, 2}}).reduce({{Resource::between_nodes, 0, 5}});
  EXPECT_DOUBLE_EQ(list.time(false).seconds, 5);
  EXPECT_DOUBLE_EQ(list.time(true).seconds, 7);
}

TEST(StepTime, PhasesAreOneAfterAnother) {
  const Phases two = {{Resource::between_nodes, 1, 2}, {Resource::in_node, 0.5, 3}};
  EXPECT_DOUBLE_EQ(seconds(two), 6.5);
  EXPECT_DOUBLE_EQ(List().gather(two).time().seconds, 6.5);
  EXPECT_DOUBLE_EQ(List().gather(two).gather(two).time().seconds, 13);
  EXPECT_DOUBLE_EQ(List().gather({}).compute(1, {0}).time().seconds, 1);
  EXPECT_DOUBLE_EQ(List().time().seconds, 0);
}

TEST(StepTime, AListThatNeverEndsIsNoStep) { EXPECT_THROW(List().compute(1, {1}).compute(1).time(), Error); }

struct TimedStep {
  TimedStep(fsdp::Strategy strategy, int ranks, int ranks_per_node, int shard_group_size = 0) {
    model::LlamaConfig config;
    config.vocab_size = 1000;
    config.hidden_size = 64;
    config.intermediate_size = 128;
    config.layers = 3;
    config.query_heads = config.key_value_heads = 4;
    config.head_dim = 16;
    config.max_position_embeddings = 64;
    model = model::make_llama(config);
    options.strategy = strategy;
    options.batch = {2, 16};
    std::vector<int> nodes;
    for (int rank = 0; rank < ranks; ++rank) nodes.push_back(rank / ranks_per_node);
    mesh = fsdp::make_device_mesh(strategy, nodes, shard_group_size);
    compiled = fsdp::compile_model(*model, options, mesh, *device::make_cpu_sizes(1));
    speed.node_of_rank = nodes;
    speed.flops_per_second = 1e9;
    speed.network.in_node = {10e9, 1e-6};
    speed.network.between_nodes = {1e9, 1e-5};
  }
  std::vector<Phases> phases() const { return action_phases(*model, options, mesh, compiled, speed); }
  StepTime time() const { return time_of_step(compiled.step.actions, phases()); }
  /// Of all collectives, one after another.
  double communication() const {
    return sum_of([](const fsdp::Action& action) { return action.ranks != fsdp::Ranks::self; });
  }
  double sum_of(const std::function<bool(const fsdp::Action& action)>& counts) const {
    double sum = 0;
    const auto of_actions = phases();
    for (int i = 0; i < compiled.step.size(); ++i) {
      if (counts(compiled.step.actions[static_cast<std::size_t>(i)]))
        sum += seconds(of_actions[static_cast<std::size_t>(i)]);
    }
    return sum;
  }

  std::unique_ptr<model::Model> model;
  fsdp::EngineOptions options;
  fsdp::DeviceMesh mesh;
  fsdp::CompiledModel compiled;
  Speed speed;
};

TEST(StepTime, ComputationIsTheModels) {
  const TimedStep c(fsdp::Strategy::full_shard, 4, 2);
  const double flops = fsdp::flops_per_token(*c.model, c.options, c.compiled) * 2 * 16;
  EXPECT_NEAR(c.time().compute_seconds, flops / 1e9, 1e-9 * flops / 1e9);
}

TEST(StepTime, WaitingIsBetweenNothingAndAllCommunication) {
  for (const auto strategy :
       {fsdp::Strategy::full_shard, fsdp::Strategy::shard_grad_op, fsdp::Strategy::no_shard,
        fsdp::Strategy::hybrid_shard, fsdp::Strategy::hybrid_shard_zero2}) {
    SCOPED_TRACE(fsdp::to_string(strategy));
    TimedStep c(strategy, 8, 4);
    EXPECT_GT(c.time().waiting_seconds(), 0);
    EXPECT_LT(c.time().waiting_seconds(), c.communication() + 1e-3);
    // Computation that takes long hides all but the first gathers and the last reductions.
    const double waiting = c.time().waiting_seconds();
    c.speed.flops_per_second = 1e6;
    EXPECT_LE(c.time().waiting_seconds(), waiting * (1 + 1e-9));
    const double two_levels = c.communication();
    c.speed.route = Route::direct;
    EXPECT_GE(c.communication(), two_levels);
    if (strategy == fsdp::Strategy::full_shard) {
      EXPECT_GT(c.communication(), 1.2 * two_levels);
    }
  }
}

// A reduce-scatter of gradients and a gather of parameters instead of an all-reduce of gradients, all in float32.
TEST(StepTime, TheOptimizerStateOverReplicasCostsWhatItSaves) {
  TimedStep c(fsdp::Strategy::hybrid_shard, 8, 4);
  const auto norm_over = [&](fsdp::Ranks ranks) {
    return c.sum_of([&](const auto& action) {
      return action.op == fsdp::Op::all_reduce_squares && action.ranks == ranks;
    });
  };
  const double whole = c.communication();
  EXPECT_GT(norm_over(fsdp::Ranks::shard_group), 0);
  EXPECT_EQ(norm_over(fsdp::Ranks::replicate_group), 0);
  c.options.shard_optimizer_over_replicas = true;
  c.compiled = fsdp::compile_model(*c.model, c.options, c.mesh, *device::make_cpu_sizes(1));
  const double of_norm = norm_over(fsdp::Ranks::replicate_group);  // now over both groups
  EXPECT_GT(of_norm, 0);
  EXPECT_NEAR(c.communication() - of_norm, whole, 0.02 * whole) << "but for padding";
}

// 3 shard groups of 2 on nodes of 3 ranks: only the one in the middle lies on two nodes, and the others wait for it.
TEST(StepTime, IsThatOfTheSlowestGroup) {
  TimedStep c(fsdp::Strategy::hybrid_shard, 6, 3, 2);
  const double with_crossing = c.communication();
  c.mesh.shards = {{0, 1}, {1, 2}, {3, 4}};  // all inside a node
  EXPECT_GT(with_crossing, 1.2 * c.communication());
}

TEST(StepTime, OneRankWaitsForNobody) {
  TimedStep c(fsdp::Strategy::full_shard, 1, 1);
  EXPECT_NEAR(c.time().waiting_seconds(), 0, 1e-6);
}

}  // namespace
}  // namespace llampi::test
