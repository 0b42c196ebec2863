// SPDX-License-Identifier: Apache-2.0
// Live ranges never overlap in an arena, neither in the order of the list nor in time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "unit/fsdp/lists.hpp"

namespace llampi::test {
namespace {

using namespace fsdp;
using ::testing::Each;
using ::testing::ElementsAre;

bool share_memory(const Buffer& a, const Buffer& b) {
  return a.arena == b.arena && a.bytes > 0 && b.bytes > 0 && a.offset < b.offset + b.bytes &&
         b.offset < a.offset + a.bytes;
}

/// Whether everything that is done with a buffer in a live range is over before an action begins.
class DoneWith {
 public:
  explicit DoneWith(const Program& plan) : happens_before_(plan.actions), uses_(plan.buffers.size()) {
    for (int i = 0; i < plan.size(); ++i) {
      for (const auto& operand : plan.actions[static_cast<std::size_t>(i)].operands) {
        if (operand.buffer != BufferId::none) uses_[static_cast<std::size_t>(operand.buffer)].push_back(i);
      }
    }
  }
  bool before(int action, std::size_t buffer, const LiveRange& range) const {
    return std::ranges::all_of(uses_[buffer], [&](int use) {
      return use < range.first || use > range.last || happens_before_(use, action);
    });
  }

 private:
  HappensBefore happens_before_;
  std::vector<std::vector<int>> uses_;
};

void expect_sound(const Program& plan, const std::string& name) {
  const DoneWith done_with(plan);
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const auto& a = plan.buffers[i];
    EXPECT_LE(a.offset + a.bytes, plan.arena_bytes[static_cast<std::size_t>(a.arena)]);
    EXPECT_EQ(a.offset % 128, 0);
    for (std::size_t k = 1; k < a.live.size(); ++k) {
      ASSERT_LT(a.live[k - 1].last, a.live[k].first) << name << ": " << to_string(a.purpose);
      ASSERT_TRUE(done_with.before(a.live[k].first, i, a.live[k - 1]))
          << name << ": " << to_string(a.purpose) << " " << a.name << " is used again before it is done with";
    }
    for (std::size_t j = 0; j < plan.buffers.size(); ++j) {
      const auto& b = plan.buffers[j];
      if (i == j || !share_memory(a, b)) continue;
      ASSERT_FALSE(a.persistent || b.persistent)
          << name << ": " << to_string(a.purpose) << " " << to_string(b.purpose);
      for (const auto& x : a.live) {
        for (const auto& y : b.live) {
          ASSERT_TRUE(x.last < y.first || y.last < x.first)
              << name << ": " << to_string(a.purpose) << " " << to_string(b.purpose);
          if (x.last < y.first) {
            ASSERT_TRUE(done_with.before(y.first, i, x))
                << name << ": " << to_string(b.purpose) << " " << b.name << " begins at action " << y.first
                << " before " << to_string(a.purpose) << " " << a.name << " is done with";
          }
        }
      }
    }
  }
}

/// What is alive at the peak action: no placement can need less.
std::int64_t lower_bound(const Program& program, Arena arena) {
  std::vector<std::int64_t> alive(program.actions.size());
  for (const auto& buffer : program.buffers) {
    if (buffer.arena != arena) continue;
    if (buffer.persistent) {
      for (auto& bytes : alive) bytes += buffer.bytes;
    }
    for (const auto& range : buffer.live) {
      for (int i = range.first; i <= range.last; ++i) alive[static_cast<std::size_t>(i)] += buffer.bytes;
    }
  }
  return *std::max_element(alive.begin(), alive.end());
}

void expect_close_to_lower_bound(const Program& plan, const std::string& name) {
  for (const auto arena : {Arena::device, Arena::host}) {
    const auto bound = lower_bound(plan, arena);
    // A quarter for fragmentation, and the rounding of each buffer to 256 bytes.
    EXPECT_LE(plan.arena_bytes[static_cast<std::size_t>(arena)],
              bound + bound / 4 + 256 * static_cast<std::int64_t>(plan.buffers.size()))
        << name;
  }
}

/// One test, since the lists take most of its time: buffers that share memory never meet, and little memory is used.
TEST(MemoryPlan, IsSoundAndCloseToTheLowerBound) {
  for (const auto& options : list_cases()) {
    const auto lists = make_placed_lists(options);
    expect_sound(lists.step, options.name());
    expect_sound(lists.evaluation, options.name() + " evaluation");
    expect_close_to_lower_bound(lists.step, options.name());
  }
}

TEST(MemoryPlan, PersistentBuffersLieAlikeInStepAndEvaluation) {
  const auto lists = make_placed_lists({});
  int persistent = 0;
  for (std::size_t i = 0; i < lists.step.buffers.size(); ++i) {
    const auto& buffer = lists.step.buffers[i];
    if (!buffer.persistent) continue;
    ++persistent;
    const auto& other = lists.evaluation.buffers[i];
    EXPECT_EQ(buffer.purpose, other.purpose);
    EXPECT_EQ(buffer.name, other.name);
    EXPECT_EQ(buffer.offset, other.offset);
    EXPECT_EQ(buffer.bytes, other.bytes);
  }
  EXPECT_GT(persistent, 10);
}

/// From the second on: that one needs sharded gradients and activations at once.
TEST(MemoryPlan, MoreMicroBatchesCostInputsOnly) {
  const auto two = make_placed_lists({.micro_batches = 2});
  const auto eight = make_placed_lists({.micro_batches = 8});
  const auto &a = two.step, &b = eight.step;
  const std::int64_t inputs = (4 * (4 * 32 + 3) + 255) / 256 * 256;
  EXPECT_EQ(b.arena_bytes[0], a.arena_bytes[0] + 6 * inputs);
}

TEST(MemoryPlan, ShardsShrinkWithTheNumberOfRanks) {
  const auto sum = [](int ranks) {
    const auto lists = make_placed_lists({.layers = 6, .ranks = ranks});
    std::int64_t bytes = 0;
    for (const auto& b : lists.step.buffers) {
      if (b.purpose == Purpose::parameter_shard || b.purpose == Purpose::exp_avg ||
          b.purpose == Purpose::exp_avg_sq)
        bytes += b.bytes;
    }
    return static_cast<double>(bytes);
  };
  // Padding to 64 elements per unit and rank is what is allowed to deviate: 8 units x 3 x 64 x 4 bytes.
  EXPECT_NEAR(sum(4), sum(1) / 4, 8 * 3 * 64 * 4);
}

TEST(MemoryPlan, CheckpointingShortensTheLivesOfSavedTensors) {
  const auto bytes = [](const BlockCheckpointing& checkpointing) {
    const auto lists = make_placed_lists({.layers = 12, .checkpointing = checkpointing});
    return lists.step.arena_bytes[0];
  };
  const auto none = bytes(Checkpointing::none), selective = bytes(Checkpointing::selective);
  const auto full = bytes(Checkpointing::full);
  const auto feed_forward = bytes(Checkpointing::feed_forward);
  const auto offload = bytes({Checkpointing::offload, 6, Checkpointing::selective});
  EXPECT_LT(selective, none);
  EXPECT_LT(offload, selective);
  EXPECT_LT(bytes({Checkpointing::offload, 6, Checkpointing::feed_forward}), offload);
  EXPECT_LT(feed_forward, selective);
  EXPECT_LT(full, feed_forward);
  // Block by block.
  auto before = none;
  for (const int blocks : {1, 4, 8, 11}) {
    const auto some = bytes({Checkpointing::full, blocks, Checkpointing::none});
    EXPECT_LT(some, before) << blocks;
    before = some;
  }
  EXPECT_EQ(full, before) << "the last block is used at once, so recomputing it saves nothing";
}

TEST(MemoryPlan, ResidualsInHostMemoryTakeNoneOfTheDevice) {
  const auto arenas = [](const BlockCheckpointing& checkpointing, bool residuals) {
    return make_placed_lists(
               {.layers = 12, .checkpointing = checkpointing, .offload = {.residuals = residuals}})
        .step.arena_bytes;
  };
  const std::int64_t output = (32 * 24 * 4 + 255) / 256 * 256;
  for (const auto& [checkpointing, kept_by_block] :
       {std::pair(Checkpointing::selective, 2), {Checkpointing::feed_forward, 2}, {Checkpointing::full, 1}}) {
    const auto without = arenas(checkpointing, false), with = arenas(checkpointing, true);
    const std::int64_t leave = 11 * kept_by_block * output;  // not those of the last block
    EXPECT_EQ(with[1] - without[1], leave);
    EXPECT_LE(with[0], without[0]);
    // At the busiest moment some are on their way. (Of whole blocks that are recomputed it is the update.)
    if (checkpointing != Checkpointing::full) {
      EXPECT_LE(with[0] - without[0], -leave + 6 * output) << to_string(BlockCheckpointing(checkpointing));
    }
  }
}

TEST(Checkpointing, IsWrittenAsItIsRead) {
  for (const char* text : {"none", "selective", "feed_forward", "full", "full 4, feed_forward 12, selective",
                           "offload 7, selective"}) {
    const auto read = parse_checkpointing(text);
    ASSERT_TRUE(read.has_value()) << text;
    EXPECT_EQ(to_string(*read), text);
  }
  const auto some = parse_checkpointing(" full 2 ,none ");
  ASSERT_TRUE(some.has_value());
  EXPECT_EQ(*some, BlockCheckpointing(Checkpointing::full, 2, Checkpointing::none));
  EXPECT_THAT(some->of_blocks(4), ElementsAre(Checkpointing::full, Checkpointing::full, Checkpointing::none,
                                              Checkpointing::none));
  const BlockCheckpointing spread({Checkpointing::offload, Checkpointing::offload, Checkpointing::full},
                                  Checkpointing::none);
  EXPECT_THAT(spread.of_blocks(5),
              ElementsAre(Checkpointing::offload, Checkpointing::full, Checkpointing::offload,
                          Checkpointing::none, Checkpointing::none));
  EXPECT_THAT(BlockCheckpointing(Checkpointing::offload).of_blocks(3), Each(Checkpointing::offload));
  for (const char* text : {"", "auto", "full 4", "full, none", "full 0, none", "full -1, none", "full 2 none",
                           "full x, none", "full 2, none,", "full 99999, none"})
    EXPECT_FALSE(parse_checkpointing(text).has_value()) << text;
}

}  // namespace
}  // namespace llampi::test
