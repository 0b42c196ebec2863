// SPDX-License-Identifier: Apache-2.0
// EngineOptions::shard_optimizer_over_replicas: the bits of replicas that each keep the whole optimizer state of their shard.
#include <gtest/gtest.h>

#include <algorithm>

#include "llampi/comm/comm.hpp"
#include "llampi/core/half.hpp"
#include "support/expect_trajectory.hpp"
#include "support/mpi_test.hpp"
#include "support/simulated_nodes.hpp"

namespace llampi::test {
namespace {

using namespace fsdp;

class StateOverReplicas : public ::testing::Test {
 protected:
  /// Strategies with replicas that this many ranks have.
  static std::vector<TrajectoryOptions> strategies() {
    std::vector<TrajectoryOptions> all = {{.strategy = Strategy::no_shard}};
    if (test_ranks() % 2 != 0 || test_ranks() == 2) return all;
    all.push_back({.strategy = Strategy::hybrid_shard, .shard_group_size = 2});
    return all;
  }
  void expect_same(TrajectoryOptions options, const std::string& what) {
    const auto expected = run_trajectory(world_, fixture_, options);
    options.state_over_replicas = true;
    options.poison = true;
    expect_same_bits(expected, run_trajectory(world_, fixture_, options),
                     fmt::format("{}, {}", to_string(options.strategy), what));
  }

  comm::World& world_ = test_world();
  oracle::Fixture fixture_ = oracle::load("groups_frozen");
};

TEST_F(StateOverReplicas, ChangesNoBit) {
  fixture_.training.steps = 3;  // bits that differ do so at once
  constexpr DType kBrief = DType::bfloat16;
  const bool power_of_two = (test_ranks() & (test_ranks() - 1)) == 0;
  for (const auto& strategy : strategies()) {
    expect_same(strategy, "as it comes");
    for (const bool unsharded : {false, true}) {
      auto options = strategy;
      options.accumulation = 3;
      options.unsharded = unsharded;
      expect_same(options, fmt::format("accumulated, unsharded {}", unsharded));
      if (!power_of_two) continue;
      options.sum_order = SumOrder::tree;
      expect_same(options, fmt::format("in a tree, unsharded {}", unsharded));
    }
    auto options = strategy;
    options.accumulation = 2;
    options.precision = {.param = kBrief, .reduce = kBrief};
    for (const auto& offload :
         std::vector<Offload>{{}, {.optimizer = true}, {.optimizer = true, .host_step = true}}) {
      options.offload = offload;
      expect_same(options, fmt::format("bfloat16, optimizer in host memory {}, step on the host {}",
                                       offload.optimizer, offload.host_step));
    }
    options.precision = {};
    expect_same(options, "float32, step on the host");
    options.offload = {};
    options.precision = {
        .param = kBrief, .reduce = kBrief, .master = kBrief, .moment = kBrief, .gradient_shard = kBrief};
    options.wrap.policy = WrapPolicy::none;
    expect_same(options, "everything in bfloat16, one unit");
  }
}

TEST_F(StateOverReplicas, EqualsPyTorch) {
  for (auto options : strategies()) {
    options.accumulation = 2;
    options.state_over_replicas = true;
    expect_oracle(run_trajectory(world_, fixture_, options), fixture_, kFloat32Tolerance);
  }
}

std::int64_t bytes_of(const CompiledModel& compiled, BufferId UnitState::*buffer) {
  std::int64_t bytes = 0;
  for (const UnitState& unit : compiled.persistent().units) {
    if (unit.*buffer != BufferId::none) bytes += compiled.step[unit.*buffer].bytes;
  }
  return bytes;
}

TEST_F(StateOverReplicas, ARankKeepsItsPart) {
  for (auto options : strategies()) {
    options.precision = {.param = DType::bfloat16, .reduce = DType::bfloat16};
    options.state_over_replicas = true;
    const TrainingRun training(world_, fixture_, options);
    const CompiledModel& compiled = training.engine().compiled();
    std::int64_t parts = 0;
    for (const Unit& unit : compiled.units) {
      if (unit.frozen) continue;
      EXPECT_EQ(unit.state_parts, training.engine().mesh().replica_count());
      parts += unit.part_elements();
    }
    EXPECT_EQ(bytes_of(compiled, &UnitState::exp_avg), 4 * parts);
    EXPECT_EQ(bytes_of(compiled, &UnitState::exp_avg_sq), 4 * parts);
    // Frozen units have no master but the shard.
    std::int64_t masters = 0;
    for (const UnitState& unit : compiled.persistent().units)
      masters += unit.has_own_master() ? compiled.step[unit.master].bytes : 0;
    EXPECT_EQ(masters, 4 * parts);
  }
}

// What is saved is the model once; what is held are whole shards, the same on all replicas.
TEST_F(StateOverReplicas, PiecesAreSavedOnceAndShardsAreHeldByAll) {
  for (auto options : strategies()) {
    options.state_over_replicas = true;
    options.snapshot = true;
    TrainingRun training(world_, fixture_, options);
    training.step(1);
    Engine& engine = training.engine();
    std::vector<std::int64_t> saved(engine.model().parameters().size()), held(saved);
    for (const auto& piece : engine.pieces_to_save())
      saved[static_cast<std::size_t>(piece.parameter)] += piece.master.elements();
    for (const auto& piece : engine.pieces_held()) {
      held[static_cast<std::size_t>(piece.parameter)] += piece.master.elements();
      EXPECT_EQ(piece.exp_avg.elements(), 0);
    }
    world_.sum(saved);
    world_.sum(held);
    for (std::size_t p = 0; p < saved.size(); ++p) {
      EXPECT_EQ(saved[p], engine.model().parameters()[p].elements());
      EXPECT_EQ(held[p], saved[p] * engine.mesh().replica_count());
    }
    const auto kept = engine.pieces_to_save();
    const auto copies = engine.snapshot();
    engine.wait_for_snapshot();
    ASSERT_EQ(copies.size(), kept.size());
    for (std::size_t i = 0; i < kept.size(); ++i) {
      for (const auto& [from, to] :
           {std::pair(kept[i].master, copies[i].master), std::pair(kept[i].exp_avg, copies[i].exp_avg),
            std::pair(kept[i].exp_avg_sq, copies[i].exp_avg_sq)}) {
        ASSERT_EQ(from.elements(), to.elements());
        if (from.elements() == 0) continue;
        const auto count = static_cast<std::size_t>(from.elements());
        EXPECT_TRUE(std::equal(from.as<float>(), from.as<float>() + count, to.as<float>()));
      }
    }
  }
}

TEST_F(StateOverReplicas, WithoutReplicasThereIsNothingToDivide) {
  fixture_.training.steps = 2;
  expect_same({}, "full_shard");
}

// Ranks of a node have the shards, those of different nodes the same one.
TEST_F(StateOverReplicas, GathersBetweenNodes) {
  if (test_ranks() != 4) GTEST_SKIP() << "needs two nodes of several ranks";
  fixture_.training.steps = 3;
  TrajectoryOptions options{.strategy = Strategy::hybrid_shard, .accumulation = 2};
  SimulatedNodes nodes(world_, {0, 0, 1, 1});
  const auto expected = run_trajectory(nodes, fixture_, options);
  options.state_over_replicas = true;
  expect_same_bits(expected, run_trajectory(nodes, fixture_, options), "on two nodes");
}

}  // namespace
}  // namespace llampi::test
