// SPDX-License-Identifier: Apache-2.0
// Ranks on cores of their own, as each of them finds itself.
#include "llampi/comm/binding.hpp"

#include <gmock/gmock.h>
#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "support/mpi_test.hpp"

namespace llampi::test {

using namespace comm;
using ::testing::HasSubstr;

namespace {

std::vector<int> own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cores.push_back(cpu);
  }
  return cores;
}

struct Bound {
  Binding binding;
  std::string said;
};

Bound bind(int threads, Bind choice = Bind::automatic) {
  Bound bound;
  const Log log([&](const std::string& line) { bound.said += line + "\n"; });
  bound.binding = bind_ranks(test_world(), {.bind = choice, .threads = threads}, log);
  return bound;
}

/// The ranks of the tests are on one node, and all may run on all of its cores.
bool enough_cores(int threads) {
  return own_cores().size() >= static_cast<std::size_t>(threads * test_ranks());
}

}  // namespace

TEST(Binding, GivesRanksCoresOfTheirOwnUntilItEnds) {
  const auto before = own_cores();
  const bool enough = enough_cores(1);
  {
    const Bound bound = bind(1);
    const auto all = all_gather_value(test_world(), own_cores());
    EXPECT_EQ(bound.binding.is_bound(), test_ranks() > 1 && enough) << bound.said;
    if (bound.binding.is_bound()) {
      std::set<int> seen;
      for (const auto& cores : all) {
        EXPECT_GE(cores.size(), 1U);
        for (const int core : cores)
          EXPECT_TRUE(seen.insert(core).second) << "core " << core << " has two ranks";
      }
      EXPECT_EQ(seen.size(), before.size()) << "no core is left out";
      EXPECT_THAT(bound.said, HasSubstr("bound by llampi"));
      std::thread([&] { EXPECT_EQ(own_cores(), all[static_cast<std::size_t>(test_rank())]); }).join();
    } else {
      EXPECT_EQ(own_cores(), before);
      EXPECT_THAT(bound.said, HasSubstr("not bound"));
      EXPECT_EQ(bound.said.find("which is slow") == std::string::npos, enough) << bound.said;
    }
  }
  EXPECT_EQ(own_cores(), before);
}

TEST(Binding, TakesThreadsAlongThatAreThere) {
  std::mutex mutex;
  std::condition_variable changed;
  int layer = 0;
  std::vector<int> of_thread;
  std::thread thread([&] {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return layer == 1; });
    of_thread = own_cores();
  });
  {
    const Bound bound = bind(1);
    {
      const std::lock_guard lock(mutex);
      layer = 1;
    }
    changed.notify_one();
    thread.join();
    EXPECT_EQ(of_thread, own_cores());
  }
}

TEST(Binding, IsLeftOutWhereItIsNotWanted) {
  const auto before = own_cores();
  const Bound none = bind(1, Bind::none);
  EXPECT_FALSE(none.binding.is_bound());
  EXPECT_THAT(none.said, HasSubstr("run.bind = none"));
  const Bound crowded = bind(1000);
  EXPECT_FALSE(crowded.binding.is_bound());
  EXPECT_THAT(crowded.said, HasSubstr("which is slow"));
  setenv("OMP_PROC_BIND", "close", 1);
  const Bound by_openmp = bind(1);
  unsetenv("OMP_PROC_BIND");
  EXPECT_FALSE(by_openmp.binding.is_bound());
  EXPECT_EQ(own_cores(), before);
}

TEST(Binding, LeavesWhatTheLauncherHasBound) {
  if (test_ranks() == 1 || !enough_cores(1)) GTEST_SKIP() << "needs several ranks and a core for each";
  const Bound first = bind(1);  // stands for the launcher
  const auto before = own_cores();
  const Bound second = bind(1);
  EXPECT_FALSE(second.binding.is_bound());
  EXPECT_THAT(second.said, HasSubstr("bound by the launcher"));
  EXPECT_EQ(own_cores(), before);
}

}  // namespace llampi::test
