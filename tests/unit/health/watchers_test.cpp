// SPDX-License-Identifier: Apache-2.0
// Which ranks watch which, on machines that are not there.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

#include "health/process_links.hpp"
#include "health/watchers.hpp"
#include "llampi/core/process.hpp"

namespace llampi::test {
namespace {

using namespace health;

using ::testing::ElementsAre;

/// So many ranks on each node, all of them this process.
std::vector<RankProcess> ranks_on(const std::vector<int>& per_node) {
  std::vector<RankProcess> ranks;
  for (int node = 0; node < std::ssize(per_node); ++node) {
    const std::string host = "node" + std::to_string(node);
    for (int i = 0; i < per_node[static_cast<std::size_t>(node)]; ++i)
      ranks.push_back({host, host, ::getpid(), node});
  }
  return ranks;
}

/// A process that has ended, and whose number nobody else can have until wait().
class Ended {
 public:
  Ended() : pid_(::fork()) {
    if (pid_ == 0) ::_exit(0);
    siginfo_t info;
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }
  ~Ended() { ::waitpid(pid_, nullptr, 0); }
  Ended(const Ended&) = delete;
  Ended& operator=(const Ended&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

TEST(Watchers, MonitorsAreOnTwoNodesWhereThereAreTwo) {
  EXPECT_THAT(choose_monitors(ranks_on({1})), ElementsAre(0));
  EXPECT_THAT(choose_monitors(ranks_on({4})), ElementsAre(0, 1));
  EXPECT_THAT(choose_monitors(ranks_on({3, 3, 2})), ElementsAre(0, 3));
}

TEST(Watchers, EveryProcessOfAMachineIsWatchedByTheOneBefore) {
  const auto ranks = ranks_on({3, 2, 1});
  std::vector<int> neighbours;
  for (int rank = 0; rank < std::ssize(ranks); ++rank) neighbours.push_back(neighbour_of(ranks, rank));
  EXPECT_THAT(neighbours, ElementsAre(1, 2, 0, 4, 3, -1));
}

TEST(Watchers, WhoIsLeftWatchesAllTheOthersInTheEnd) {
  const auto ranks = ranks_on({3, 2});
  EXPECT_EQ(neighbour_after(ranks, 1, 2), 0);
  EXPECT_EQ(neighbour_after(ranks, 1, 0), -1);
  EXPECT_EQ(neighbour_after(ranks, 3, 4), -1);
}

TEST(Watchers, TheFirstRankOfEachNodeIsLinkedWithTheMonitorsOnOthers) {
  using Pairs = std::vector<std::pair<int, int>>;
  EXPECT_EQ(pairs_to_link(ranks_on({4}), {0, 1}), Pairs{});
  EXPECT_EQ(pairs_to_link(ranks_on({1, 1, 1}), {0, 1}), (Pairs{{0, 1}, {1, 0}, {2, 0}, {2, 1}}));
  EXPECT_EQ(pairs_to_link(ranks_on({3, 2, 2}), {0, 3}), (Pairs{{0, 3}, {3, 0}, {5, 0}, {5, 3}}));
  auto unknown = ranks_on({3});
  for (auto& rank : unknown) rank.machine.clear();
  EXPECT_EQ(pairs_to_link(unknown, {0, 1}), (Pairs{{0, 1}, {1, 0}, {2, 0}, {2, 1}}));
}

// However many ranks there are, a monitor hears a few hundred in a second at most, whatever happens.
TEST(Watchers, AThousandRanksNeverSpeakAtOnce) {
  for (const int ranks : {1, 2, 64, 256, 257, 1024, 4096}) {
    SCOPED_TRACE(ranks);
    const double interval = heartbeat_interval(ranks, 1, 60);
    EXPECT_GE(interval, 1);
    EXPECT_LE(ranks / interval, kSpeakers);
    std::map<int, int> beats_in, reports_in;  // in each second
    for (int rank = 0; rank < ranks; ++rank) {
      const double delay = heartbeat_delay(rank, ranks, interval);
      EXPECT_LE(delay, interval);
      ++beats_in[static_cast<int>(delay)];
      ++reports_in[static_cast<int>(report_delay(rank))];
    }
    for (const auto& [second, count] : beats_in) EXPECT_LE(count, kSpeakers + 1) << second;
    for (const auto& [second, count] : reports_in) EXPECT_LE(count, kSpeakers) << second;
  }
  EXPECT_EQ(heartbeat_interval(256, 0.2, 0.2), 0.2);  // a watchdog with little patience goes first
  EXPECT_EQ(heartbeat_interval(4096, 1, 10), 10);
  EXPECT_EQ(report_delay(255), 0);
}

TEST(Watchers, WhatCannotBeSeenIsNotWatched) {
  auto ranks = ranks_on({2});
  for (auto& rank : ranks) rank.machine.clear();
  EXPECT_EQ(neighbour_of(ranks, 0), -1);
  const Ended ended;
  ranks = ranks_on({2});
  ranks[1].pid = ended.pid();
  EXPECT_EQ(neighbour_of(ranks, 0), -1);
  EXPECT_EQ(neighbour_of(ranks, 1), 0);
}

TEST(Processes, HaveAState) {
  EXPECT_EQ(process_state(::getpid()), 'R');
  const Ended ended;
  EXPECT_EQ(process_state(ended.pid()), 0) << "also while nobody has waited for it";
  pid_t former = 0;
  {
    const Ended waited_for;
    former = waited_for.pid();
  }
  EXPECT_EQ(process_state(former), 0);
}

}  // namespace
}  // namespace llampi::test
