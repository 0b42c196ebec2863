// SPDX-License-Identifier: Apache-2.0
// Products in 8 bits on 1, 2, 3 and 4 ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "llampi/comm/comm.hpp"
#include "support/expect_trajectory.hpp"
#include "support/mpi_test.hpp"

namespace llampi::test {
namespace {

using namespace fsdp;

/// A number that falls to the other side of a border between two of float8 changes a loss by 1e-4 and more; where none
/// does, PyTorch's losses in float32 and float64 differ by 1.1e-7 (tests/oracle/README.md). So this is an equal
/// recipe, and 1e-5, which is asked for, would be enough.
constexpr Tolerance kFp8 = kFloat32Tolerance;

double largest_difference(const std::vector<double>& losses, const std::vector<double>& others) {
  double largest = 0;
  for (std::size_t i = 0; i < losses.size(); ++i)
    largest = std::max(largest, std::abs(losses[i] / others.at(i) - 1));
  return largest;
}

class Fp8 : public ::testing::TestWithParam<const char*> {
 protected:
  Trajectory run(const TrajectoryOptions& options) const { return run_trajectory(world_, fixture_, options); }

  /// With micro-batches of as many sequences as PyTorch's, whose tensors have one scale each.
  int accumulation() const {
    const auto sequences = test_ranks() * fixture_.fp8.sequences;
    return static_cast<int>((fixture_.global_batch + sequences - 1) / sequences);
  }

  void expect_pytorch_in_float32(const Trajectory& trajectory) const {
    const auto steps = static_cast<std::size_t>(fixture_.fp8.float32_steps);
    expect_oracle(trajectory, fixture_, steps == fixture_.steps.size() ? kFp8 : kFp8OtherCasts);
    for (std::size_t i = 0; i < steps; ++i) {
      EXPECT_NEAR(trajectory.losses.at(i) / fixture_.steps.at(i).loss, 1, kFp8.loss) << i;
      EXPECT_NEAR(trajectory.grad_norms.at(i) / fixture_.steps.at(i).grad_norm, 1, kFp8.norm) << i;
    }
  }

  comm::World& world_ = test_world();
  oracle::Fixture fixture_ = oracle::load(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Oracle, Fp8, ::testing::Values("fp8_untied", "fp8_tied", "fp8_blocks"),
                         [](const auto& test) { return std::string(test.param); });

class Fp8Oracle : public Fp8 {};
INSTANTIATE_TEST_SUITE_P(Oracle, Fp8Oracle,
                         ::testing::Values("fp8_untied", "fp8_tied", "fp8_mistral", "fp8_blocks",
                                           "fp8_blocks_e4m3"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(Fp8Oracle, EqualsPyTorch) {
  const auto trajectory = run({.accumulation = accumulation(), .poison = true});
  expect_pytorch_in_float32(trajectory);
  EXPECT_EQ(trajectory.fp8_saturated, fixture_.fp8.saturated);
  // Operands that are only rounded to bfloat16, or not at all, are another trajectory.
  EXPECT_GT(largest_difference(trajectory.losses, fixture_.fp8.bfloat16_losses), 1e-4);
  EXPECT_GT(largest_difference(trajectory.losses, fixture_.fp8.float32_losses), 1e-4);
}

TEST_P(Fp8, WithoutItLossesAreThoseOfFloat32) {
  const auto trajectory = run({.accumulation = accumulation(), .without_fp8 = true});
  EXPECT_LT(largest_difference(trajectory.losses, fixture_.fp8.float32_losses), kFp8.loss);
}

/// Where nothing is rounded but what is cast.
TEST_P(Fp8Oracle, EqualsPyTorchInFloat64) {
  const auto trajectory = run({.accumulation = accumulation(), .float64 = true});
  expect_oracle(trajectory, fixture_, {1e-9, 1e-8, 1e-9, 1e-8});
}

/// Gathered in 8 bits or whole on every rank and cast there, whatever is wrapped, prefetched, recomputed, offloaded.
TEST_P(Fp8, BitsDependOnNoScheduleAndNoPlace) {
  const std::vector<WrapOptions> wraps = {
      {},
      {.policy = WrapPolicy::modules, .modules = {"LlamaDecoderLayer", "LlamaAttention", "LlamaMLP"}},
      {.policy = WrapPolicy::modules, .modules = {"Linear"}},
      {.policy = WrapPolicy::none}};
  const std::vector<Offload> offloads = {{}, {.optimizer = true}, {.optimizer = true, .host_step = true}};
  fixture_.training.steps = 2;  // bits that differ do so at once
  for (const int micro_batches : {1, 2}) {
    const auto expected = run({.strategy = Strategy::no_shard, .accumulation = micro_batches});
    int number = 0;
    for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard}) {
      for (const auto& wrap : wraps) {
        for (const auto checkpointing : {Checkpointing::none, Checkpointing::full, Checkpointing::selective,
                                         Checkpointing::offload, Checkpointing::feed_forward}) {
          const auto& offload = offloads.at(static_cast<std::size_t>(++number) % offloads.size());
          if ((number + number / 4) % 2 != micro_batches - 1)
            continue;  // one of the two for each combination
          const TrajectoryOptions options{
              .strategy = strategy,
              .accumulation = micro_batches,
              .backward_prefetch = number % 2 == 0 ? Prefetch::pre : Prefetch::none,
              .limit = 1 + number % 3,
              .poison = true,
              .checkpointing = checkpointing,
              .wrap = wrap,
              .offload = offload};
          expect_same_bits(expected, run(options),
                           fmt::format("{} {} {} offload {}", to_string(strategy), to_string(wrap.policy),
                                       to_string(checkpointing), number % 3));
        }
      }
    }
  }
}

/// A micro-batch without labels has gradients of zeros: two of each half of a block. What is recomputed is not counted
/// again.
TEST_P(Fp8, CountsTensorsOfZeros) {
  const int micro_batches = accumulation() + 1;
  std::int64_t empty = 0;
  for (int m = 0; m < micro_batches; ++m)
    empty += m * test_ranks() + test_rank() < fixture_.global_batch ? 0 : 1;
  for (const auto checkpointing : {Checkpointing::none, Checkpointing::full, Checkpointing::selective}) {
    TrainingRun training(world_, fixture_, {.accumulation = micro_batches, .checkpointing = checkpointing});
    const auto result = training.step(1);
    EXPECT_EQ(result.fp8.zero_scales, 4 * fixture_.config.layers * empty);
    EXPECT_EQ(result.fp8.saturated, 0);
  }
}

/// An infinite weight becomes the largest number of its format: the loss is finite, so the count has to tell.
TEST_P(Fp8, CountsInfiniteNumbers) {
  TrainingRun training(world_, fixture_, {.accumulation = accumulation()});
  for (const auto& piece : training.engine().pieces_to_load()) {
    const auto& name = training.engine().model().parameters()[static_cast<std::size_t>(piece.parameter)].name;
    if (name == "model.layers.0.self_attn.o_proj.weight" && piece.begin == 0)
      piece.master.as<float>()[0] = std::numeric_limits<float>::infinity();
  }
  const auto result = training.step(1);
  auto counted = static_cast<double>(result.fp8.saturated);
  world_.sum(std::span(&counted, 1));
  EXPECT_EQ(counted, 1);
  EXPECT_TRUE(std::isfinite(result.loss));
}

TEST_P(Fp8, UsesAsMuchMemoryAsIsPlanned) {
  for (const auto checkpointing : {Checkpointing::none, Checkpointing::selective}) {
    TrainingRun training(world_, fixture_, {.checkpointing = checkpointing});
    training.step(1);
    training.step(2);
    const Engine& engine = training.engine();
    EXPECT_EQ(engine.memory().used(), engine.compiled().arena_bytes);
  }
}

TEST_P(Fp8, HybridGroupsHoldEqualReplicas) {
  if (test_ranks() != 4) GTEST_SKIP() << "needs two groups of two";
  const TrajectoryOptions hybrid{.strategy = Strategy::hybrid_shard, .poison = true, .shard_group_size = 2};
  auto zero2 = hybrid;
  zero2.strategy = Strategy::hybrid_shard_zero2;
  const auto first = run(hybrid);
  expect_pytorch_in_float32(first);
  expect_same_bits(first, run(zero2), "hybrid_shard_zero2");
}

/// Masters that are kept in bfloat16, and a bfloat16 shard beside a float32 master: the same casts.
TEST_P(Fp8, TakesParametersInBfloat16) {
  const Precision bfloat16{.param = DType::bfloat16, .reduce = DType::bfloat16};
  Precision short_state = bfloat16;
  short_state.master = short_state.moment = short_state.gradient_shard = DType::bfloat16;
  for (const Precision& precision : {bfloat16, short_state}) {
    const auto whole = run({.strategy = Strategy::no_shard, .poison = true, .precision = precision});
    expect_same_bits(whole, run({.poison = true, .precision = precision}), "full_shard");
    expect_same_bits(whole, run({.poison = true, .precision = precision, .offload = {.optimizer = true}}),
                     "with the optimizer in host memory");
    // 1.6e-3 was seen; a model that has learnt nothing is 1.9e-2 away.
    EXPECT_LT(largest_difference(whole.losses, fixture_.fp8.float32_losses), 5e-3);
  }
}

std::int64_t gathered_bytes(const Engine& engine) {
  std::int64_t bytes = 0;
  for (const auto& action : engine.compiled().step.actions)
    bytes += action.op == Op::unshard ? action.bytes : 0;
  return bytes;
}

TEST_P(Fp8, HalfOfTheBytesOfBlocksAreGathered) {
  if (test_ranks() == 1) GTEST_SKIP() << "nothing is gathered";
  const TrajectoryOptions options{.precision = {.param = DType::bfloat16}};
  auto without = options;
  without.without_fp8 = true;
  const TrainingRun fp8(world_, fixture_, options), bfloat16(world_, fixture_, without);
  const auto matrices = [](const TrainingRun& run) {
    std::int64_t elements = 0;
    for (const auto& action : run.engine().compiled().step.actions) {
      if (action.op != Op::unshard) continue;
      const auto& unit = run.engine().compiled().units[static_cast<std::size_t>(action.unit)];
      elements += unit.fp8 ? unit.flat_elements() : 0;
    }
    return elements;
  };
  // One byte instead of two, but for the padding of what was one flat buffer and now is two.
  const auto& actions = fp8.engine().compiled().step.actions;
  const std::int64_t gathers = std::ranges::count(actions, Op::unshard, &Action::op);
  const std::int64_t padding = 64 * test_ranks() * gathers * 2;
  EXPECT_NEAR(static_cast<double>(gathered_bytes(bfloat16.engine()) - gathered_bytes(fp8.engine())),
              static_cast<double>(matrices(fp8)), static_cast<double>(padding));
  EXPECT_GT(matrices(fp8), 0);
}

}  // namespace
}  // namespace llampi::test
