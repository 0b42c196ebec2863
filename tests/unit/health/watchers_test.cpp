// SPDX-License-Identifier: Apache-2.0
// Which ranks watch which, on machines that are not there.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

#include "health/watchers.hpp"
#include "llampi/core/process.hpp"

namespace llampi::test {
namespace {

using namespace health;

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Every third rank of a world, on one node; all of them this process.
std::vector<RankProcess> node_of(const std::vector<std::string>& machines) {
  std::vector<RankProcess> node;
  for (int i = 0; i < std::ssize(machines); ++i)
    node.push_back({3 * i, machines[static_cast<std::size_t>(i)], ::getpid()});
  return node;
}

int rank_of(const RankProcess* process) { return process == nullptr ? -1 : process->rank; }

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

TEST(Watchers, EveryProcessOfAMachineIsWatchedByTheOneBefore) {
  const auto node = node_of({"a", "b", "a", "b", "a", "c"});
  std::vector<int> neighbours;
  for (const auto& process : node) neighbours.push_back(rank_of(neighbour_of(node, process.rank)));
  EXPECT_THAT(neighbours, ElementsAre(6, 9, 12, 3, 0, -1));
}

TEST(Watchers, WhoIsLeftWatchesAllTheOthersInTheEnd) {
  const auto node = node_of({"a", "a", "a", "b"});
  EXPECT_EQ(rank_of(neighbour_after(node, 3, 6)), 0);
  EXPECT_EQ(rank_of(neighbour_after(node, 3, 0)), -1);
  EXPECT_EQ(rank_of(neighbour_after(node, 0, 6)), -1);
}

TEST(Watchers, TheFirstOfEachOtherMachineIsNotSeenFromTheFirstRank) {
  EXPECT_THAT(unseen_from_first(node_of({"a", "a", "a"})), IsEmpty());
  EXPECT_THAT(unseen_from_first(node_of({"a", "b", "a", "b", "c"})), ElementsAre(3, 12));
  EXPECT_THAT(unseen_from_first(node_of({"", "", ""})), ElementsAre(3, 6)) << "each may be on its own";
  EXPECT_THAT(unseen_from_first(node_of({"a", "", "a", ""})), ElementsAre(3, 9));
}

// However many ranks there are, the first of a node hears a few hundred in a second at most, and no thousand of them write
// files at once.
TEST(Watchers, AThousandRanksNeverSpeakAtOnce) {
  for (const int ranks : {1, 2, 64, 256, 257, 1024, 4096}) {
    SCOPED_TRACE(ranks);
    std::map<int, int> beats_in, reports_in;  // in each tenth of a second
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_LT(heartbeat_delay(rank, ranks, 0.2), 0.2);
      ++beats_in[static_cast<int>(10 * heartbeat_delay(rank, ranks, 60))];
      ++reports_in[static_cast<int>(10 * report_delay(rank, ranks, 60))];
    }
    for (const auto& [tenth, count] : beats_in) EXPECT_LE(count, kSpeakersPerSecond / 10 + 1) << tenth;
    for (const auto& [tenth, count] : reports_in) EXPECT_LE(count, kWritersPerSecond / 10 + 1) << tenth;
    EXPECT_LT(report_delay(ranks - 1, ranks, 0.7), 0.7) << "when mpirun is about to kill them";
  }
}

TEST(Watchers, RanksThatAllKnowWhatIsWrongSpeakInTurnButNotForEver) {
  EXPECT_LT(turn_of(1), turn_of(2));
  EXPECT_LE(turn_of(4095), 5);
}

TEST(Watchers, WhatCannotBeSeenIsNotWatched) {
  EXPECT_EQ(neighbour_of(node_of({"", ""}), 0), nullptr);
  const Ended ended;
  auto node = node_of({"a", "a"});
  node[1].pid = ended.pid();
  EXPECT_EQ(neighbour_of(node, 0), nullptr);
  EXPECT_EQ(rank_of(neighbour_of(node, 3)), 0);
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
