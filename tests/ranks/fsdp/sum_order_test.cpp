// SPDX-License-Identifier: Apache-2.0
// SumOrder::tree: the bits of one rank on 2, 4 and 8 ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/format_ranks.hpp"
#include "llampi/core/error.hpp"
#include "support/expect_trajectory.hpp"
#include "support/mpi_test.hpp"
#include "support/simulated_nodes.hpp"

namespace llampi::test {
namespace {

using namespace fsdp;

class InTree : public ::testing::TestWithParam<const char*> {
 protected:
  Trajectory run(const TrajectoryOptions& options) const { return run_trajectory(world_, fixture_, options); }
  /// As many micro-batches as there are ranks, and more, on this rank alone.
  Trajectory run_alone(TrajectoryOptions options) const {
    WorldAlone alone(world_);
    return run_trajectory(alone, fixture_, options);
  }

  comm::World& world_ = test_world();
  oracle::Fixture fixture_ = oracle::load(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Oracle, InTree,
                         ::testing::Values("gqa_tied", "mha_untied", "qwen2", "qwen3", "mistral",
                                           "mistral_window"),
                         [](const auto& test) { return std::string(test.param); });

bool is_power_of_two(int count) { return std::has_single_bit(static_cast<unsigned>(count)); }

/// The strategies that this many ranks have, hybrid ones in groups of each size.
std::vector<TrajectoryOptions> strategies() {
  std::vector<TrajectoryOptions> all;
  for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
    all.push_back({.strategy = strategy});
  for (int size = 2; size < test_ranks(); size *= 2) {
    for (const auto strategy : {Strategy::hybrid_shard, Strategy::hybrid_shard_zero2})
      all.push_back({.strategy = strategy, .shard_group_size = size});
  }
  return all;
}

TEST_P(InTree, BitsAreThoseOfOneRank) {
  if (!is_power_of_two(test_ranks())) GTEST_SKIP() << "refused";
  fixture_.training.steps = 2;  // bits that differ do so at once
  const std::vector<WrapOptions> wraps = {
      {}, {.policy = WrapPolicy::modules, .modules = {"Linear"}}, {.policy = WrapPolicy::none}};
  const std::vector<BlockCheckpointing> checkpointing = {Checkpointing::none, Checkpointing::full,
                                                         Checkpointing::selective, Checkpointing::offload,
                                                         Checkpointing::feed_forward};
  const std::vector<Offload> offloads = {{},
                                         {.optimizer = true},
                                         {.optimizer = true, .host_step = true},
                                         {.optimizer = true, .params = true},
                                         {.residuals = true}};
  int number = 0;
  for (const auto& [global_batch, micro_batch] : {std::pair{8, 1}, {8, 2}, {24, 1}, {24, 2}}) {
    if (global_batch % (micro_batch * test_ranks()) != 0) continue;
    const TrajectoryOptions common{.sum_order = SumOrder::tree, .global_batch = global_batch};
    auto whole = common;
    whole.accumulation = global_batch / micro_batch;
    const auto expected = run_alone(whole);
    for (const auto& strategy : strategies()) {
      for (const bool unsharded : {false, true}) {
        ++number;
        auto options = strategy;
        options.sum_order = SumOrder::tree;
        options.global_batch = global_batch;
        options.accumulation = global_batch / micro_batch / test_ranks();
        options.unsharded = unsharded;
        options.wrap = wraps.at(static_cast<std::size_t>(number) % wraps.size());
        options.limit = 1 + number / 2 % 2;  // not with `unsharded`, which alternates
        options.all_reduce_stream = is_hybrid(options.strategy) && number % 4 < 2;
        options.checkpointing = checkpointing.at(static_cast<std::size_t>(number) / 2 % checkpointing.size());
        options.offload = offloads.at(static_cast<std::size_t>(number) % offloads.size());
        options.poison = true;
        expect_same_bits(expected, run(options),
                         fmt::format("{} groups of {}, batch {} of {}, unsharded {}, wrap {}",
                                     to_string(options.strategy), options.shard_group_size, global_batch,
                                     micro_batch, unsharded, number % wraps.size()));
      }
    }
  }
}

// Scales of FP8 operands are maxima: of whole weights and of a micro-batch.
class InTreeFp8 : public InTree {};
INSTANTIATE_TEST_SUITE_P(Oracle, InTreeFp8, ::testing::Values("fp8_untied", "fp8_blocks"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(InTreeFp8, BitsAreThoseOfOneRank) {
  if (!is_power_of_two(test_ranks())) GTEST_SKIP() << "refused";
  fixture_.training.steps = 2;
  for (const auto& [global_batch, micro_batch] : {std::pair{8, 1}, {16, 2}}) {
    TrajectoryOptions whole{.sum_order = SumOrder::tree, .global_batch = global_batch};
    whole.accumulation = global_batch / micro_batch;
    const auto expected = run_alone(whole);
    for (auto options : strategies()) {
      options.sum_order = SumOrder::tree;
      options.global_batch = global_batch;
      options.accumulation = global_batch / micro_batch / test_ranks();
      for (const bool unsharded : {false, true}) {
        options.unsharded = unsharded;
        expect_same_bits(
            expected, run(options),
            fmt::format("{} groups of {}, batch {} of {}, unsharded {}", to_string(options.strategy),
                        options.shard_group_size, global_batch, micro_batch, unsharded));
      }
    }
  }
}

/// Without it they are not, or the test above says nothing.
TEST_P(InTree, OtherwiseBitsDependOnTheRanks) {
  if (test_ranks() == 1) GTEST_SKIP() << "needs ranks";
  TrajectoryOptions options{.global_batch = 24};
  options.accumulation = 24;
  const auto alone = run_alone(options);
  options.accumulation = 24 / test_ranks();
  EXPECT_NE(run(options).losses, alone.losses);
}

TEST_P(InTree, EqualsPyTorch) {
  if (!is_power_of_two(test_ranks())) GTEST_SKIP() << "refused";
  for (const bool unsharded : {false, true}) {
    for (const int accumulation : {1, 3, 4}) {
      expect_oracle(run({.accumulation = accumulation, .unsharded = unsharded, .sum_order = SumOrder::tree}),
                    fixture_, kFloat32Tolerance);
      expect_oracle(run({.accumulation = accumulation,
                         .float64 = true,
                         .unsharded = unsharded,
                         .sum_order = SumOrder::tree}),
                    fixture_, {1e-9, 1e-8, 1e-9, 1e-8});
    }
  }
}

// Ranks of a node are summed first, which with a power of two of consecutive ranks on each is the same tree.
TEST_P(InTree, BitsDoNotDependOnTheNodes) {
  if (!is_power_of_two(test_ranks()) || test_ranks() < 4) GTEST_SKIP() << "needs two nodes of several ranks";
  fixture_.training.steps = 2;
  TrajectoryOptions options{.sum_order = SumOrder::tree, .global_batch = 8};
  options.accumulation = 8;
  const auto expected = run_alone(options);
  options.accumulation = 8 / test_ranks();
  for (int per_node = 2; per_node < test_ranks(); per_node *= 2) {
    std::vector<int> consecutive, in_turns;
    for (int rank = 0; rank < test_ranks(); ++rank) {
      consecutive.push_back(rank / per_node);
      in_turns.push_back(rank % (test_ranks() / per_node));
    }
    for (const auto strategy : {Strategy::full_shard, Strategy::no_shard, Strategy::hybrid_shard}) {
      options.strategy = strategy;
      SimulatedNodes nodes(world_, consecutive);
      expect_same_bits(expected, run_trajectory(nodes, fixture_, options), to_string(strategy));
    }
    options.strategy = Strategy::full_shard;
    SimulatedNodes nodes(world_, in_turns);
    try {
      TrainingRun training(nodes, fixture_, options);
      FAIL() << "it was taken";
    } catch (const UserError& error) {
      EXPECT_STREQ(
          error.what(),
          ("sum_order = tree is not possible with this placement: sums are formed inside nodes first, then node by "
           "node, and the nodes have " +
           comm::format_nodes(in_turns) +
           "; start the same power of two of consecutive ranks on each node (mpirun --map-by slot, srun "
           "--distribution=block), or use sum_order = any")
              .c_str());
    }
  }
}

TEST_P(InTree, IsRefusedOnRanksThatAreNoPowerOfTwo) {
  if (is_power_of_two(test_ranks())) GTEST_SKIP() << "can be had";
  try {
    TrainingRun training(world_, fixture_, {.sum_order = SumOrder::tree});
    FAIL() << "it was taken";
  } catch (const UserError& error) {
    EXPECT_STREQ(
        error.what(),
        "sum_order = tree needs a number of ranks that is a power of two, and there are 3; start 2 or 4 ranks, or "
        "use sum_order = any");
  }
}

}  // namespace
}  // namespace llampi::test
