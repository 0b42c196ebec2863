// SPDX-License-Identifier: Apache-2.0
// Tests that fail on one of several ranks. Disabled: CMakeLists.txt runs each by name and looks at how the
// job ends.
#include <gtest/gtest.h>

#include "llampi/comm/comm.hpp"
#include "support/mpi_test.hpp"
#include "support/rank_values.hpp"
#include "support/streams.hpp"

namespace llampi::test {
namespace {

using namespace comm;

bool fails_here() { return test_world().rank() == 1; }

TEST(DISABLED_Failing, Expectation) {
  EXPECT_FALSE(fails_here()) << "failed on purpose";
  test_world().barrier();
}

TEST(DISABLED_Failing, AssertionBeforeACollective) {
  ASSERT_FALSE(fails_here()) << "failed on purpose";
  test_world().barrier();
}

TEST(DISABLED_Failing, ExceptionBeforeACollective) {
  if (fails_here()) throw Error("thrown on purpose");
  test_world().barrier();
}

// The others never join the second collective, so that waiting for it would take for ever.
TEST(DISABLED_Failing, ExceptionWithWorkInFlight) {
  World& world = test_world();
  const auto group = world.group(first_ranks(world.size()));
  std::vector<float> shard(1'000'000);
  std::vector<float> whole(shard.size() * static_cast<std::size_t>(world.size()));
  if (fails_here()) {
    const auto work = group->all_gather(row(shard), row(whole), test::kUnshard);
    throw Error("thrown on purpose");
  }
  world.barrier();
}

}  // namespace
}  // namespace llampi::test
