// SPDX-License-Identifier: Apache-2.0
// Jobs of which a rank fails: how they end, what is said, and which records are there. Times are bounds far
// above what these take on a loaded machine; docs/failures.md has what they take.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <tuple>

#include "support/shell.hpp"

namespace llampi::test {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// Far below what these jobs would be allowed, and would run.
constexpr auto kSoon = std::chrono::seconds(60);
// mpirun sees the end of a rank as well, and gives the others two seconds: little on a loaded machine. It
// waits for so long twice, whether or not they have ended.
constexpr auto* kPatientMpirun = "OMPI_MCA_odls_base_sigkill_timeout=4 $JOB";

// It goes on without ranks that have ended.
constexpr auto* kHeedlessMpirun = "OMPI_MCA_orte_enable_recovery=1 $JOB";

class Watchdogs : public ::testing::Test {
 protected:
  /// @param around shell commands; $JOB is the job
  Ending job(int ranks, const std::string& arguments, const std::string& around = "$JOB") {
    const auto begin = std::chrono::steady_clock::now();
    const Ending ending =
        shell(folder_.path(), "JOB='" + std::string(MPIRUN) + " -n " + std::to_string(ranks) + " " +
                                  WATCHED_JOB + " . " + arguments + "'; " + around);
    took_ = std::chrono::steady_clock::now() - begin;
    return ending;
  }
  bool has_record(int rank) const { return std::filesystem::exists(file(rank)); }
  nlohmann::json record(int rank) const { return nlohmann::json::parse(read_text(file(rank))); }
  std::filesystem::path file(int rank) const {
    return folder_.path() / ("flight/rank-0000" + std::to_string(rank) + ".json");
  }

  ScratchFolder folder_;
  std::chrono::steady_clock::duration took_{};
};

TEST_F(Watchdogs, LetAJobBeThatMoves) {
  const Ending ending = job(3, "2 slow 1 5");  // 3.5 s, 0.7 of them without any movement at a time
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(ending.err, "");
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "flight"));
}

TEST_F(Watchdogs, LetAStepTakeAsLongAsTheyWereTold) {
  for (const char* kind : {"", " one-thread"}) {
    const Ending ending = job(2, "1 long 1 1" + std::string(kind));
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(ending.err, "");
  }
}

TEST_F(Watchdogs, NameARankThatIsStopped) {
  for (const int rank : {0, 2}) {  // the one that watches, and another
    const Ending ending = job(3, "2 stop " + std::to_string(rank) + " 100");
    const std::string name = "rank " + std::to_string(rank) + " on ";
    EXPECT_EQ(ending.status, 1) << ending.err;
    EXPECT_LT(took_, kSoon);
    ASSERT_EQ(ending.complaints().size(), 1U) << ending.err;
    EXPECT_THAT(ending.complaints()[0],
                ContainsRegex("llampi: watchdog: " + name + ".+ sent no heartbeat for [0-9.]+ s"));
    EXPECT_THAT(ending.err, ContainsRegex("\n  " + name +
                                          ".+: step 3, micro-batch 0: thinking of model.layers.0, after "
                                          "unshard #4 of model.layers.1 \\(4.00 KiB\\), last heartbeat"));
    EXPECT_THAT(ending.err, HasSubstr("its process is stopped"));
    EXPECT_THAT(ending.err, ContainsRegex(std::string("\n  ranks ") + (rank == 0 ? "1-2" : "0-1") +
                                          ": step 3, micro-batch 0: waiting for other ranks in unshard #5 of "
                                          "model.layers.0"));
    for (const int other : {0, 1, 2}) EXPECT_EQ(has_record(other), other != rank) << other;
    // mpirun has let it go on and told all ranks to terminate since.
    EXPECT_EQ(record(1)["reason"], "a rank is unresponsive");
    const auto last = record(1)["operations"].back();
    EXPECT_EQ(last["sequence"], 5);
    EXPECT_EQ(last["operation"], "unshard");
    EXPECT_EQ(last["of"], "model.layers.0");
    EXPECT_EQ(last["bytes"], 4096);
    EXPECT_EQ(last["step"], 3);
    EXPECT_EQ(last["state"], "issued");
    EXPECT_EQ(record(1)["operations"][3]["state"], "completed");
    std::filesystem::remove_all(folder_.path() / "flight");
  }
}

TEST_F(Watchdogs, EndAJobOfWhichOneRankIsLeft) {
  const Ending ending = job(4, "1 stop-all-but-one 0 100");
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_LT(took_, kSoon);
  EXPECT_THAT(ending.err, ContainsRegex("llampi: watchdog: rank 0 on .+, rank 1 on .+ sent no heartbeat"));
  EXPECT_TRUE(has_record(3));
}

TEST_F(Watchdogs, NameTheMonitorsWhoseProcessesHaveEnded) {
  const Ending ending = job(4, "1 kill-the-monitors 0 100", kHeedlessMpirun);
  EXPECT_LT(took_, kSoon);
  EXPECT_THAT(
      ending.err,
      ContainsRegex("llampi: watchdog: rank 0 on .+, rank 1 on .+ exited without reporting an error"));
  // Who has found it asks the others, though no tree leads to them.
  EXPECT_THAT(ending.err,
              ContainsRegex("\n  ranks 2-3: step [0-9]+, micro-batch 0: waiting for other ranks"));
  EXPECT_EQ(ending.complaints().size(), 1U) << ending.err;
  for (const int rank : {2, 3}) EXPECT_TRUE(has_record(rank)) << rank;
}

// Without a thread for what may hang, the report comes all the same, and the job ends; records are not written.
TEST_F(Watchdogs, EndAJobThatCanStartNoThread) {
  const Ending ending = job(3, "1 no-thread 2 100");
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_LT(took_, kSoon);
  EXPECT_THAT(ending.err, ContainsRegex("llampi: watchdog: rank 2 on .+ sent no heartbeat for"));
  EXPECT_THAT(ending.err, HasSubstr("\n  the record of ranks 0-1 was not written to"));
}

TEST_F(Watchdogs, NameARankThatHoldsUpTheOthers) {
  const Ending ending = job(3, "2 sleep 1 100");
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_THAT(ending.err,
              ContainsRegex("llampi: watchdog: no progress for [0-9.]+ s; rank 1 on .+ is behind"));
  EXPECT_THAT(ending.err,
              ContainsRegex("\n  rank 1 on .+: step 3, micro-batch 0: thinking of model.layers.0, .+, for "));
  EXPECT_THAT(ending.err,
              ContainsRegex("\n  ranks 0, 2: step 3, micro-batch 0: waiting for other ranks in unshard #5"));
  for (const int rank : {0, 1, 2}) EXPECT_TRUE(has_record(rank));
}

// A folder that has the name of the file stands for a disk that cannot be written.
TEST_F(Watchdogs, NameARankThatCannotWriteItsRecord) {
  std::filesystem::create_directories(file(2));
  Ending ending = job(3, "2 sleep 1 100");
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_THAT(ending.err, ContainsRegex("\n  the record of ranks 0-1 is in [^\n]+"
                                        "\n  the record of rank 2 was not written to "));
  std::filesystem::create_directories(folder_.path() / "alone/flight/rank-00000.json");
  ending = job(1, "1 sleep 0 100 one-thread", "cd alone && $JOB");
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_THAT(ending.err, HasSubstr("\n  the record of rank 0 was not written to "));
}

// Training goes on meanwhile: a billion steps.
TEST_F(Watchdogs, NameARankWhoseSecondThreadHangs) {
  const Ending ending = job(3, "2 side-work 1 1000000000");
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_LT(took_, kSoon);
  ASSERT_EQ(ending.complaints().size(), 1U) << ending.err;
  EXPECT_THAT(
      ending.complaints()[0],
      ContainsRegex("llampi: watchdog: rank 1 on .+ is stuck while saving a checkpoint in the background: no "
                    "progress for [0-9.]+ s"));
  EXPECT_THAT(ending.err, HasSubstr("the record of ranks 0-2 is in "));
}

TEST_F(Watchdogs, WatchOneRankToo) {
  const Ending ending = job(1, "1 sleep 0 100");
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_THAT(ending.err, ContainsRegex("llampi: watchdog: no progress for [0-9.]+ s"));
  EXPECT_TRUE(has_record(0));
}

TEST_F(Watchdogs, SayWhichRankDoesSomethingElse) {
  // The barriers of all operations are alike, so the job goes on until somebody notices: long before the end.
  const Ending ending = job(3, "20 diverge 1 1000000000");
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_LT(took_, kSoon);
  ASSERT_EQ(ending.complaints().size(), 1U) << ending.err;
  EXPECT_THAT(
      ending.complaints()[0],
      ContainsRegex("watchdog: the ranks are desynchronized before operation #[0-9]+: rank 1 on .+ differs "
                    "from the others"));
}

TEST_F(Watchdogs, SayWhatARankLeftOut) {
  const Ending ending = job(3, "2 leave-out 2 100");  // its operation #6 is the others' #7
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_THAT(ending.err, ContainsRegex("the ranks are desynchronized at operation #6: rank 2 on "));
  EXPECT_THAT(ending.err, HasSubstr("\n  ranks 0-1: unshard #6 of model.layers.1"));
  EXPECT_THAT(ending.err, HasSubstr("\n  rank 2: unshard #6 of model.layers.0"));
}

TEST_F(Watchdogs, EndAJobOfWhichARankHasEnded) {
  // Both ranks to which all report, and another.
  for (const auto& [way, rank] : {std::pair("exit-at-once", 0), {"exit", 1}, {"exit-at-once", 2}}) {
    const Ending ending = job(3, fmt::format("600 {} {} 100", way, rank), kPatientMpirun);
    EXPECT_NE(ending.status, 0) << ending.err;
    EXPECT_LT(took_, kSoon);
    ASSERT_EQ(ending.complaints().size(), 1U) << ending.err;
    EXPECT_THAT(ending.complaints()[0],
                ContainsRegex(
                    fmt::format("llampi: watchdog: rank {} on .+ exited without reporting an error", rank)));
    for (const int other : {0, 1, 2}) EXPECT_EQ(has_record(other), other != rank) << other;
    std::filesystem::remove_all(folder_.path() / "flight");
  }
}

// No other rank sees its process, and the launcher does not care, like srun.
TEST_F(Watchdogs, NameARankThatHasEndedAloneOnItsNode) {
  // Both ranks to which all report, and another.
  for (const auto& [ranks, way, rank] : {std::tuple(3, "exit-at-once", 0), {3, "kill", 2}, {2, "exit", 1}}) {
    const Ending ending = job(ranks, fmt::format("600 {} {} 100 apart", way, rank), kHeedlessMpirun);
    EXPECT_LT(took_, kSoon);
    ASSERT_EQ(ending.complaints().size(), 1U) << ending.err;
    EXPECT_THAT(ending.complaints()[0],
                ContainsRegex(
                    fmt::format("llampi: watchdog: rank {} on .+ exited without reporting an error", rank)));
    for (int other = 0; other < ranks; ++other) EXPECT_EQ(has_record(other), other != rank) << other;
    std::filesystem::remove_all(folder_.path() / "flight");
  }
}

// Of twelve nodes that of rank 3 has another below it, which rank 3 tells of, and whose questions it passes on.
TEST_F(Watchdogs, NameARankOnWhichOthersRely) {
  const Ending ending = job(12, "1 stop 3 100 apart");
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_LT(took_, kSoon);
  ASSERT_EQ(ending.complaints().size(), 1U) << ending.err;
  EXPECT_THAT(ending.complaints()[0],
              ContainsRegex("llampi: watchdog: rank 3 on .+ sent no heartbeat for [0-9.]+ s"));
  EXPECT_THAT(ending.err, HasSubstr("\n  ranks 0-2, 4-11: step 3, micro-batch 0: waiting for other ranks"));
  EXPECT_THAT(ending.err, HasSubstr("the record of ranks 0-2, 4-11 is in "));
}

TEST_F(Watchdogs, TakeNoOrdinaryEndOnAnotherNodeForAFailure) {
  Ending ending = job(3, "600 slow 1 2 apart");
  EXPECT_EQ(ending.status, 0);
  EXPECT_EQ(ending.err, "");
  ending = job(3, "600 throw 2 100 apart");
  EXPECT_EQ(ending.status, 1);
  EXPECT_THAT(ending.complaints(), ::testing::ElementsAre("llampi: rank 2: something is wrong here"));
}

// Then each rank has only its own machine to look at.
TEST_F(Watchdogs, WatchWhereMpiIsForOneThread) {
  Ending ending = job(3, "600 exit-at-once 1 100 one-thread", kPatientMpirun);
  EXPECT_NE(ending.status, 0) << ending.err;
  EXPECT_LT(took_, kSoon);
  EXPECT_THAT(ending.out, HasSubstr("each watches only itself"));
  EXPECT_THAT(ending.err, ContainsRegex("watchdog: rank 1 on .+ exited; the record of rank 0 is in "));
  EXPECT_TRUE(has_record(0));
  ending = job(2, "2 sleep 1 100 one-thread");
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_LT(took_, kSoon);
  EXPECT_THAT(ending.err, ContainsRegex("watchdog: no progress for [0-9.]+ s on rank [01] on "));
}

TEST_F(Watchdogs, LeaveTheWordToARankThatKnowsWhatIsWrong) {
  const Ending ending = job(3, "600 throw 2 100");
  EXPECT_EQ(ending.status, 1);
  EXPECT_LT(took_, kSoon);
  EXPECT_THAT(ending.complaints(), ::testing::ElementsAre("llampi: rank 2: something is wrong here"));
}

TEST_F(Watchdogs, DoNotCountTheTimeInWhichTheJobWasSuspended) {
  // `slow` has movement every 0.7 s; the job is suspended for twice the limit.
  const Ending ending = job(2, "2 slow 1 6",
                            "$JOB & job=$!; sleep 2; ranks=$(cat /proc/$job/task/$job/children);"
                            " kill -STOP $ranks; sleep 4; kill -CONT $ranks; wait $job");
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_THAT(ending.out, HasSubstr("step 6"));
  EXPECT_THAT(ending.err, Not(HasSubstr("watchdog")));
}

}  // namespace
}  // namespace llampi::test
