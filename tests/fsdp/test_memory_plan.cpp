// Lifetimes never overlap in an arena, neither in the order of the list nor in time.
#include <gtest/gtest.h>

#include <algorithm>

#include "lists.hpp"

namespace llampi::fsdp {
namespace {

bool share_memory(const Buffer& a, const Buffer& b) {
  return a.arena == b.arena && a.bytes > 0 && b.bytes > 0 && a.offset < b.offset + b.bytes &&
         b.offset < a.offset + a.bytes;
}

void expect_sound(const std::vector<Action>& actions, const MemoryPlan& plan, const std::string& name) {
  const HappensBefore happens_before(actions);
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const auto& a = plan.buffers[i];
    EXPECT_LE(a.offset + a.bytes, plan.arena_bytes[static_cast<int>(a.arena)]);
    EXPECT_EQ(a.offset % 128, 0);
    for (std::size_t life = 1; life < a.lives.size(); ++life) {
      ASSERT_LT(a.lives[life - 1].last, a.lives[life].first) << name << ": " << to_string(a.role);
      ASSERT_TRUE(happens_before(a.lives[life - 1].user, a.lives[life].first))
          << name << ": " << to_string(a.role) << " " << a.owner << " is used again before it is done with";
    }
    for (std::size_t j = 0; j < plan.buffers.size(); ++j) {
      const auto& b = plan.buffers[j];
      if (i == j || !share_memory(a, b)) continue;
      ASSERT_FALSE(a.persistent() || b.persistent())
          << name << ": " << to_string(a.role) << " " << to_string(b.role);
      for (const auto& x : a.lives) {
        for (const auto& y : b.lives) {
          ASSERT_TRUE(x.last < y.first || y.last < x.first)
              << name << ": " << to_string(a.role) << " " << to_string(b.role);
          if (x.last < y.first) {
            ASSERT_TRUE(happens_before(x.user, y.first))
                << name << ": " << to_string(b.role) << " " << b.owner << " begins at action " << y.first
                << " before " << to_string(a.role) << " " << a.owner << " is done with at " << x.user;
          }
        }
      }
    }
  }
}

TEST(MemoryPlan, BuffersThatShareMemoryNeverMeet) {
  for (const auto& options : list_cases()) {
    const auto lists = make_lists(options);
    expect_sound(lists.step, place(lists.step, lists.plan_input()), options.name());
    expect_sound(lists.evaluation, place(lists.evaluation, lists.plan_input()),
                 options.name() + " evaluation");
  }
}

TEST(MemoryPlan, PersistentBuffersLieAlikeInStepAndEvaluation) {
  const auto lists = make_lists({});
  const auto step = place(lists.step, lists.plan_input());
  const auto evaluation = place(lists.evaluation, lists.plan_input());
  int persistent = 0;
  for (const auto& buffer : step.buffers) {
    if (!buffer.persistent()) continue;
    ++persistent;
    const auto& other = evaluation.find(buffer.role, buffer.owner, buffer.item);
    EXPECT_EQ(buffer.offset, other.offset);
    EXPECT_EQ(buffer.bytes, other.bytes);
  }
  EXPECT_GT(persistent, 10);
}

/// From the second on: that one needs sharded gradients and activations at once.
TEST(MemoryPlan, MoreMicroBatchesCostInputsOnly) {
  const auto two = make_lists({.micro_batches = 2});
  const auto eight = make_lists({.micro_batches = 8});
  const auto a = place(two.step, two.plan_input());
  const auto b = place(eight.step, eight.plan_input());
  const std::int64_t inputs = (4 * (4 * 32 + 1) + 255) / 256 * 256;
  EXPECT_EQ(b.arena_bytes[0], a.arena_bytes[0] + 6 * inputs);
}

TEST(MemoryPlan, ShardsShrinkWithTheNumberOfRanks) {
  const auto sum = [](int ranks) {
    const auto lists = make_lists({.layers = 6, .ranks = ranks});
    const auto plan = place(lists.step, lists.plan_input());
    std::int64_t bytes = 0;
    for (const auto& b : plan.buffers) {
      if (b.role == Role::parameter_shard || b.role == Role::exp_avg || b.role == Role::exp_avg_sq)
        bytes += b.bytes;
    }
    return static_cast<double>(bytes);
  };
  // Padding to 64 elements per unit and rank is what is allowed to deviate: 8 units x 3 x 64 x 4 bytes.
  EXPECT_NEAR(sum(4), sum(1) / 4, 8 * 3 * 64 * 4);
}

TEST(MemoryPlan, CheckpointingShortensTheLivesOfSavedTensors) {
  const auto bytes = [](Checkpointing checkpointing) {
    const auto lists = make_lists({.layers = 12, .checkpointing = checkpointing});
    return place(lists.step, lists.plan_input()).arena_bytes[0];
  };
  const auto none = bytes(Checkpointing::none), selective = bytes(Checkpointing::selective);
  const auto full = bytes(Checkpointing::full);
  EXPECT_LT(selective, none);
  EXPECT_LT(full, selective);
}

/// What is alive at the busiest action: no placement can need less.
std::int64_t lower_bound(const std::vector<Action>& actions, const MemoryPlan& plan, Arena arena) {
  std::vector<std::int64_t> alive(actions.size());
  for (const auto& buffer : plan.buffers) {
    if (buffer.arena != arena) continue;
    if (buffer.persistent()) {
      for (auto& bytes : alive) bytes += buffer.bytes;
    }
    for (const auto& life : buffer.lives) {
      for (int i = life.first; i <= life.last; ++i) alive[static_cast<std::size_t>(i)] += buffer.bytes;
    }
  }
  return *std::max_element(alive.begin(), alive.end());
}

TEST(MemoryPlan, ArenasAreCloseToTheLowerBound) {
  for (const auto& options : list_cases()) {
    const auto lists = make_lists(options);
    const auto plan = place(lists.step, lists.plan_input());
    for (const auto arena : {Arena::device, Arena::host}) {
      const auto bound = lower_bound(lists.step, plan, arena);
      // A quarter for fragmentation, and the rounding of each buffer to 256 bytes.
      EXPECT_LE(plan.arena_bytes[static_cast<int>(arena)],
                bound + bound / 4 + 256 * static_cast<std::int64_t>(plan.buffers.size()))
          << options.name();
    }
  }
}

}  // namespace
}  // namespace llampi::fsdp
