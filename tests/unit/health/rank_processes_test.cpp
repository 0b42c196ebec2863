// SPDX-License-Identifier: Apache-2.0
// Which ranks watch which, on machines that are not there.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iterator>
#include <string>
#include <vector>

#include "health/rank_processes.hpp"
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

TEST(RankProcesses, EveryProcessOfAMachineIsWatchedByTheOneBefore) {
  const auto node = node_of({"a", "b", "a", "b", "a", "c"});
  std::vector<int> neighbours;
  for (const auto& process : node) neighbours.push_back(rank_of(neighbour_of(node, process.rank)));
  EXPECT_THAT(neighbours, ElementsAre(6, 9, 12, 3, 0, -1));
}

TEST(RankProcesses, WhoIsLeftWatchesAllTheOthersInTheEnd) {
  const auto node = node_of({"a", "a", "a", "b"});
  EXPECT_EQ(rank_of(neighbour_after(node, 3, 6)), 0);
  EXPECT_EQ(rank_of(neighbour_after(node, 3, 0)), -1);
  EXPECT_EQ(rank_of(neighbour_after(node, 0, 6)), -1);
}

TEST(RankProcesses, TheFirstOfEachOtherMachineIsNotSeenFromTheFirstRank) {
  EXPECT_THAT(unseen_from_first(node_of({"a", "a", "a"})), IsEmpty());
  EXPECT_THAT(unseen_from_first(node_of({"a", "b", "a", "b", "c"})), ElementsAre(3, 12));
  EXPECT_THAT(unseen_from_first(node_of({"", "", ""})), ElementsAre(3, 6)) << "each may be on its own";
  EXPECT_THAT(unseen_from_first(node_of({"a", "", "a", ""})), ElementsAre(3, 9));
}

TEST(RankProcesses, WhatCannotBeSeenIsNotWatched) {
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
