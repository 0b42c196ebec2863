// SPDX-License-Identifier: Apache-2.0
// The search against trying everything, with formulas for memory and time that have the properties of steps.
#include "llampi/plan/tune.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "llampi/core/error.hpp"

namespace llampi::test {
namespace {

using namespace plan;
using fsdp::Strategy;

constexpr std::int64_t kSequences = 4;

std::size_t level_of(const TuneSpace& space, const Choice& choice) {
  return static_cast<std::size_t>(std::ranges::find(space.checkpointing, choice.checkpointing) -
                                  space.checkpointing.begin());
}

TuneSpace small_space() {
  return {.shardings = {{Strategy::full_shard},
                        {Strategy::shard_grad_op},
                        {Strategy::no_shard},
                        {Strategy::hybrid_shard, 2}},
          .numbers = {{}},
          .micro_batches = {1, 2, 4},
          .accumulate_unsharded = {false, true},
          .offloadings = {{}, {.optimizer = true}, {.optimizer = true, .params = true}, {.residuals = true}},
          .checkpointing = {fsdp::Checkpointing::none, fsdp::Checkpointing::selective,
                            fsdp::Checkpointing::feed_forward, fsdp::Checkpointing::full},
          .sequences = kSequences};
}

/// Memory falls and time rises with recomputation and offloading.
struct Formulas {
  const TuneSpace& space;
  std::int64_t memory = 0, host_memory = 1000;
  double more_per_level = 0.1;
  mutable int tries = 0;

  std::int64_t needed(const Choice& c) const {
    const bool sharded = c.sharding.strategy != Strategy::no_shard;
    const std::int64_t state =
        (sharded ? 40 : 100) + (c.sharding.strategy == Strategy::shard_grad_op ? 15 : 0) +
        (c.sharding.strategy == Strategy::hybrid_shard ? 30 : 0) + (c.accumulate_unsharded ? 12 : 0);
    const std::int64_t activations =
        20 * c.micro_batch * (4 - static_cast<std::int64_t>(level_of(space, c))) / 4;
    return state + activations - (c.offloading.optimizer ? 15 : 0) - (c.offloading.params ? 8 : 0) -
           (c.offloading.residuals ? 2 * c.micro_batch : 0);
  }
  double computing(const Choice& c) const {
    const double passes = static_cast<double>(kSequences) / static_cast<double>(c.micro_batch);
    return (10 + 0.4 * passes) * (1 + more_per_level * static_cast<double>(level_of(space, c)));
  }
  double seconds(const Choice& c) const {
    const double passes = static_cast<double>(kSequences) / static_cast<double>(c.micro_batch);
    double communication = c.sharding.strategy == Strategy::full_shard ? 0.9 : 0.5;
    if (!c.accumulate_unsharded) communication *= passes;
    return computing(c) + communication + (c.offloading.optimizer ? 0.35 : 0) +
           (c.offloading.params ? 0.4 * passes : 0) + (c.offloading.residuals ? 0.25 : 0);
  }
  Trial operator()(const Choice& c) const {
    ++tries;
    if (c.sharding.strategy == Strategy::hybrid_shard && c.offloading.params) throw UserError("not together");
    Trial trial;
    trial.needed_bytes = needed(c);
    trial.fits_on_device = trial.needed_bytes <= memory;
    trial.fits_on_host = !c.offloading.params || host_memory > 100;
    trial.at_least = [this, c] { return seconds(c); };
    trial.time = [this, c] {
      return TimedChoice{
          .choice = c, .time = {.seconds = seconds(c), .compute_seconds = 1}, .needed_bytes = needed(c)};
    };
    return trial;
  }
  Tuning tuned() const {
    return tune(
        space, [this](const Choice& c) { return computing(c); }, std::cref(*this));
  }
};

/// Seconds of the best of all; infinite if nothing fits.
double by_brute_force(const TuneSpace& space, const Formulas& formulas) {
  double best = std::numeric_limits<double>::infinity();
  for (const auto& sharding : space.shardings) {
    for (const auto micro_batch : space.micro_batches) {
      for (const bool unsharded : space.accumulate_unsharded) {
        if (unsharded && micro_batch == space.sequences) continue;
        for (const auto& offloading : space.offloadings) {
          for (const auto& level : space.checkpointing) {
            const Choice c{sharding, {}, micro_batch, unsharded, offloading, level};
            try {
              if (formulas(c).fits()) best = std::min(best, formulas.seconds(c));
            } catch (const UserError&) {
              continue;
            }
          }
        }
      }
    }
  }
  return best;
}

TEST(Tune, FindsWhatTryingEverythingFinds) {
  const TuneSpace space = small_space();
  for (std::int64_t memory = 20; memory <= 220; memory += 3) {
    for (const std::int64_t host : {0, 1000}) {
      SCOPED_TRACE(testing::Message() << memory << ", host " << host);
      const Formulas formulas{space, memory, host};
      const Tuning tuning = formulas.tuned();
      EXPECT_EQ(tuning.tries, formulas.tries);
      const double best = by_brute_force(space, formulas);
      std::int64_t outcomes = std::ssize(tuning.timed);
      for (const auto& [why, of_strategy] : tuning.rejected) {
        for (const auto& [strategy, count] : of_strategy) outcomes += count;
      }
      EXPECT_EQ(outcomes, tuning.candidates) << "each candidate is timed or rejected";
      EXPECT_EQ(tuning.timed.empty(), best == std::numeric_limits<double>::infinity());
      if (tuning.timed.empty()) continue;
      EXPECT_NEAR(tuning.timed.front().time.seconds, best, 1e-3 * best);
      for (const auto& timed : tuning.timed) {
        EXPECT_TRUE(formulas(timed.choice).fits()) << to_string(timed.choice.sharding);
        EXPECT_LE(timed.needed_bytes, memory);
      }
    }
  }
}

TEST(Tune, RecomputesMoreWhereThatLeavesRoomAndTakesHardlyLonger) {
  const TuneSpace space = small_space();
  const auto level = [&](double more_per_level) {
    const Formulas formulas{.space = space, .memory = 220, .more_per_level = more_per_level};
    return level_of(space, formulas.tuned().timed.front().choice);
  };
  EXPECT_EQ(level(0.01), 0U);
  EXPECT_EQ(level(0.0006), 1U);
  EXPECT_EQ(level(0.0002), 3U);
}

TEST(Tune, TriesLittleWhereEverythingFits) {
  const TuneSpace space = small_space();
  const Formulas formulas{space, 1000};
  formulas.tuned();
  EXPECT_LE(formulas.tries, 20) << "of " << space.candidates() * std::ssize(space.checkpointing);
  // Where memory is short, most of what fits is too slow.
  const Formulas with_little{space, 60};
  with_little.tuned();
  EXPECT_LE(with_little.tries, 110) << "of " << space.candidates() * std::ssize(space.checkpointing);
}

TEST(Tune, LeavesWhatHasOneValue) {
  TuneSpace space = small_space();
  space.shardings = {{Strategy::shard_grad_op}};
  space.micro_batches = {2};
  space.checkpointing = {fsdp::Checkpointing::full};
  const Formulas formulas{space, 200};
  for (const auto& timed : formulas.tuned().timed) {
    EXPECT_EQ(timed.choice.sharding.strategy, Strategy::shard_grad_op);
    EXPECT_EQ(timed.choice.micro_batch, 2);
    EXPECT_EQ(timed.choice.checkpointing, fsdp::Checkpointing::full);
  }
}

TEST(Tune, SaysWhyCandidatesWereRejected) {
  const TuneSpace space = small_space();
  const Formulas formulas{space, 30};
  const Tuning tuning = formulas.tuned();
  const std::string text = format_tuning(tuning, std::nullopt, 1e3, 30);
  EXPECT_NE(text.find("need more device memory than there is: "), std::string::npos) << text;
  EXPECT_NE(text.find("not possible (hybrid_shard), for example: not together\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace llampi::test
