// SPDX-License-Identifier: Apache-2.0
// What is said of a job by what its ranks say of themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "health/diagnosis.hpp"

namespace llampi::test {
namespace {

using namespace health;

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr Limits kLimits = {10, 600};

std::shared_ptr<FlightReport> report_with_file(const FlightRecord& record, const Heartbeat& heartbeat) {
  auto report = std::make_shared<FlightReport>(report_of(record, heartbeat));
  report->record_written = true;
  return report;
}

/// Four ranks on two nodes that have done `operations` operations and wait in the last one.
std::vector<WatchedRank> waiting_ranks(int operations, int other_rank = -1, int other_operation = 0) {
  std::vector<WatchedRank> ranks(4);
  for (int r = 0; r < 4; ++r) {
    FlightRecord record;
    record.set_names({"model.layers.0", "model.layers.1"});
    record.begin_step(12);
    for (int i = 1; i <= operations; ++i) {
      const bool other = r == other_rank && i == other_operation;
      record.issue({other ? "reduce" : "unshard", i % 2, other ? 1 << 20 : 4096, 0});
    }
    record.wait(static_cast<std::uint64_t>(operations));
    ranks[r].host = r < 2 ? "node0" : "node1";
    ranks[r].heartbeat = heartbeat_of(record, 0);
    ranks[r].report = report_with_file(record, ranks[r].heartbeat);
  }
  return ranks;
}

void let_think(WatchedRank& rank) {
  rank.heartbeat.waiting = Waiting::no;
  rank.heartbeat.doing = FixedText<44>("backward");
  rank.heartbeat.doing_name = FixedText<80>("model.layers.1.mlp");
  rank.heartbeat.micro_batch = 3;
}

void hold_all(std::vector<WatchedRank>& ranks, double seconds) {
  for (auto& rank : ranks) rank.stalled_seconds = seconds;
}

/// Four ranks that have not moved for 11 s after as many operations, and do not wait for each other.
std::vector<WatchedRank> held_ranks(Waiting waiting) {
  auto ranks = waiting_ranks(100);
  for (auto& rank : ranks) rank.heartbeat.waiting = waiting;
  hold_all(ranks, 11);
  return ranks;
}

TEST(Diagnosis, IsNoneWhileRanksMove) {
  auto ranks = waiting_ranks(100);
  EXPECT_EQ(judge(ranks, kLimits), Trouble::none);
  hold_all(ranks, 11);
  ranks[3].stalled_seconds = 9;  // whom the others wait for
  EXPECT_EQ(judge(ranks, kLimits), Trouble::none);
}

TEST(Diagnosis, AllowsTheTimeOfAStep) {
  auto ranks = waiting_ranks(100);
  const Limits longer = {10, 600, 30};
  hold_all(ranks, 29);
  EXPECT_EQ(judge(ranks, longer), Trouble::none);
  ranks[1].silent_seconds = 11;  // it ought to be heard meanwhile
  EXPECT_EQ(judge(ranks, longer), Trouble::unresponsive);
  ranks[1].silent_seconds = 0;
  hold_all(ranks, 31);
  EXPECT_EQ(judge(ranks, longer), Trouble::stalled);
}

void let_save(WatchedRank& rank, double seconds) {
  rank.heartbeat.side_work = FixedText<44>("saving a checkpoint in the background");
  rank.side_work_stalled_seconds = seconds;
}

// All ranks move on; of two whose saves stand still one waits for the other.
TEST(Diagnosis, NamesTheRankWhoseSaveBesideTrainingHangs) {
  auto ranks = waiting_ranks(100);
  let_save(ranks[1], 601);
  let_save(ranks[2], 601);
  ranks[2].heartbeat.side_work_waits = true;
  ASSERT_EQ(judge(ranks, kLimits), Trouble::side_work);
  EXPECT_THAT(
      summary(ranks, Trouble::side_work, kLimits, "runs/mine/flight"),
      StartsWith("rank 1 on node0 is stuck while saving a checkpoint in the background: no progress for "
                 "601.0 s\n  rank 1 on node0: step 12"));
  hold_all(ranks, 601);  // when training waits for it, too
  EXPECT_EQ(judge(ranks, kLimits), Trouble::side_work);
  hold_all(ranks, 0);
  let_save(ranks[1], 599);
  EXPECT_EQ(judge(ranks, kLimits), Trouble::none);
  let_save(ranks[1], 601);
  ranks[1].heartbeat.side_work = {};  // it is done
  EXPECT_EQ(judge(ranks, kLimits), Trouble::none);
}

TEST(Diagnosis, NamesTheRankThatDoesNotWait) {
  auto ranks = waiting_ranks(100);
  hold_all(ranks, 11);
  let_think(ranks[2]);
  ASSERT_EQ(judge(ranks, kLimits), Trouble::stalled);
  const auto text = summary(ranks, Trouble::stalled, kLimits, "runs/mine/flight");
  EXPECT_THAT(text, StartsWith("no progress for 11.0 s; rank 2 on node1 is behind\n"));
  EXPECT_THAT(text,
              HasSubstr("\n  rank 2 on node1: step 12, micro-batch 3: backward of model.layers.1.mlp, after "
                        "unshard #100 of model.layers.0 (4.00 KiB), for "));
  EXPECT_THAT(
      text, HasSubstr("\n  ranks 0-1, 3: step 12, micro-batch 0: waiting for other ranks in unshard #100 of "
                      "model.layers.0 (4.00 KiB)\n"));
  EXPECT_THAT(text, HasSubstr("the record of ranks 0-3 is in runs/mine/flight"));
}

TEST(Diagnosis, NamesTheRanksWhoseRecordCouldNotBeWritten) {
  auto ranks = waiting_ranks(100);
  hold_all(ranks, 11);
  const auto fail_to_write = [&](std::size_t rank) {
    auto report = *ranks[rank].report;
    report.record_written = false;
    ranks[rank].report = std::make_shared<FlightReport>(report);
  };
  fail_to_write(1), fail_to_write(2);
  ranks[3].report.reset();
  EXPECT_THAT(summary(ranks, Trouble::stalled, kLimits, "f"),
              EndsWith("\n  the record of rank 0 is in f"
                       "\n  the record of ranks 1-2 was not written to f"));
  fail_to_write(0);
  const auto none = summary(ranks, Trouble::stalled, kLimits, "f");
  EXPECT_THAT(none, EndsWith("\n  the record of ranks 0-2 was not written to f"));
  EXPECT_THAT(none, Not(HasSubstr("is in f")));
}

TEST(Diagnosis, NamesTheRankForWhichOthersWaitInAPhase) {
  std::vector<WatchedRank> ranks(3);
  for (int r = 0; r < 3; ++r) {
    FlightRecord record;
    record.begin_step(12);
    record.issue({"reduce"});
    record.set_phase("saves a checkpoint");
    ranks[r].host = "node0";
    ranks[r].heartbeat = heartbeat_of(record, 0, 0, r != 1);
    ranks[r].report = report_with_file(record, ranks[r].heartbeat);
  }
  hold_all(ranks, 601);
  ASSERT_EQ(judge(ranks, kLimits), Trouble::stalled);
  const auto text = summary(ranks, Trouble::stalled, kLimits, "flight");
  EXPECT_THAT(text, StartsWith("no progress for 601.0 s; rank 1 on node0 is behind\n  rank 1 on node0: "
                               "saves a checkpoint, step 12, for "));
  EXPECT_THAT(text, HasSubstr("\n  ranks 0, 2: saves a checkpoint, step 12: waiting for other ranks\n"));
}

// Of operations the record itself knows.
TEST(Diagnosis, KnowsOfOtherWaitingInPhasesOnly) {
  FlightRecord record;
  record.begin_step(1);
  EXPECT_EQ(heartbeat_of(record, 0, 0, true).waiting, Waiting::no);
  record.set_phase("saves a checkpoint");
  EXPECT_EQ(heartbeat_of(record, 0, 0, true).waiting, Waiting::ranks);
  const auto before = heartbeat_of(record, 0).movement;
  record.wait_for_ranks(true);
  EXPECT_EQ(heartbeat_of(record, 0).waiting, Waiting::ranks);
  record.wait_for_ranks(false);
  EXPECT_EQ(heartbeat_of(record, 0).waiting, Waiting::no);
  EXPECT_EQ(heartbeat_of(record, 0).movement, before) << "waiting is no movement";
  record.wait(record.issue({"reduce"}));
  EXPECT_EQ(heartbeat_of(record, 0, 0, true).waiting, Waiting::operation);
}

TEST(Diagnosis, NamesTheRanksThatWaitForSomethingEarlier) {
  auto ranks = waiting_ranks(100);
  hold_all(ranks, 11);
  ranks[0] = waiting_ranks(99)[0];
  ranks[0].stalled_seconds = 11;
  EXPECT_THAT(summary(ranks, Trouble::stalled, kLimits, "f"), HasSubstr("rank 0 on node0 is behind"));
}

TEST(Diagnosis, SaysThatNobodyIsBehind) {
  auto ranks = waiting_ranks(100);
  hold_all(ranks, 11);
  EXPECT_THAT(summary(ranks, Trouble::stalled, kLimits, "f"),
              StartsWith("no progress for 11.0 s, and no rank is behind the others\n  ranks 0-3: step 12"));
}

TEST(Diagnosis, IsPatientWithAJobInAPhase) {
  auto ranks = waiting_ranks(100);
  hold_all(ranks, 599);
  ranks[1].heartbeat.phase = FixedText<44>("saves a checkpoint");
  EXPECT_EQ(judge(ranks, kLimits), Trouble::none);
  hold_all(ranks, 601);
  EXPECT_EQ(judge(ranks, kLimits), Trouble::stalled);
}

TEST(Diagnosis, NamesSilentRanksWhateverTheOthersDo) {
  auto ranks = waiting_ranks(100);
  ranks[1].silent_seconds = 10.5;
  ranks[2].silent_seconds = 9.7;  // stopped with it
  ranks[1].report.reset(), ranks[2].report.reset();
  ranks[2].state = 'T';
  ASSERT_EQ(judge(ranks, kLimits), Trouble::unresponsive);
  const auto text = summary(ranks, Trouble::unresponsive, kLimits, "f");
  EXPECT_THAT(text, StartsWith("rank 1 on node0, rank 2 on node1 sent no heartbeat for 10.5 s\n"));
  EXPECT_THAT(text, HasSubstr("last heartbeat 9.7 s ago; its process is stopped"));
  EXPECT_THAT(text, HasSubstr("\n  ranks 0, 3: "));
  EXPECT_THAT(text, HasSubstr("the record of ranks 0, 3 is in f"));
}

// In a save, say, where all have done the same operations between ranks.
TEST(Diagnosis, NamesAProcessThatDoesNotRunWhereNoRankIsBehind) {
  auto ranks = held_ranks(Waiting::no);
  EXPECT_THAT(summary(ranks, Trouble::stalled, kLimits, "f"), HasSubstr("and no rank is behind the others"));
  ranks[2].state = 'D';
  const auto text = summary(ranks, Trouble::stalled, kLimits, "f");
  EXPECT_THAT(text, StartsWith("no progress for 11.0 s; rank 2 on node1 is behind\n"));
  EXPECT_THAT(text, HasSubstr("its process waits for a disk or a file system"));
}

TEST(Diagnosis, ComparesNoRankWithOthersWhereThereIsOne) {
  for (const auto& [waiting, headline] :
       {std::pair(Waiting::no, "no progress for 11.0 s\n"),
        {Waiting::device, "no progress for 11.0 s: waiting for its device, which may hang\n"}}) {
    auto ranks = held_ranks(waiting);
    ranks.resize(1);
    EXPECT_THAT(summary(ranks, Trouble::stalled, kLimits, "f"), StartsWith(headline));
  }
}

TEST(Diagnosis, DoesNotSayThatDevicesAreWellWhenAllWaitForTheirs) {
  const auto ranks = held_ranks(Waiting::device);
  EXPECT_THAT(summary(ranks, Trouble::stalled, kLimits, "f"),
              HasSubstr("and all wait for their devices: one device may hang"));
}

TEST(Diagnosis, NamesAProcessThatHasEnded) {
  auto ranks = waiting_ranks(100);
  ranks[3].exited = true;
  ranks[3].report.reset();
  ASSERT_EQ(judge(ranks, kLimits), Trouble::exited);
  EXPECT_THAT(
      summary(ranks, Trouble::exited, kLimits, "f"),
      StartsWith(
          "rank 3 on node1 exited without reporting an error (killed? dmesg or sacct show whether memory ran out)\n"));
  ranks[3].left = true;  // after an error, which it told itself
  EXPECT_EQ(judge(ranks, kLimits), Trouble::none);
}

// Ranks end after an error of all while one still writes of it: their silence is no news.
TEST(Diagnosis, NamesARankThatHangsAfterAnError) {
  auto ranks = waiting_ranks(100);
  ranks[2].heartbeat.waiting = Waiting::no;
  ranks[2].heartbeat.doing = FixedText<44>("ending after an error");
  hold_all(ranks, 6);
  for (const int r : {0, 1, 3}) {
    ranks[r].left = true;
    ranks[r].silent_seconds = 6;
    ranks[r].report.reset();
  }
  EXPECT_EQ(judge(ranks, kLimits), Trouble::none);
  hold_all(ranks, 11);
  for (const int r : {0, 1, 3}) ranks[r].silent_seconds = 11;
  ASSERT_EQ(judge(ranks, kLimits), Trouble::stalled);
  for (const Trouble found :
       {Trouble::stalled, Trouble::unresponsive})  // by rank 2 itself, which hears of nobody
    EXPECT_THAT(summary(ranks, found, kLimits, "f"),
                StartsWith("no progress for 11.0 s; rank 2 on node1 is behind\n"));
}

// A rank that fails alone and hangs before it ends the job: the others, which wait for it, are not to blame.
TEST(Diagnosis, NamesARankThatFailedAndDidNotEndTheJob) {
  auto ranks = waiting_ranks(100);
  hold_all(ranks, 11);
  ranks[1].left = true;
  ranks[1].silent_seconds = 11;
  ranks[1].report.reset();
  ASSERT_EQ(judge(ranks, kLimits), Trouble::stalled);
  const auto text = summary(ranks, Trouble::stalled, kLimits, "f");
  EXPECT_THAT(text, StartsWith("no progress for 11.0 s; rank 1 on node0 failed and did not end the job\n"));
  EXPECT_THAT(text, HasSubstr("last heartbeat 11.0 s ago; it left its training after an error"));
}

TEST(Diagnosis, NamesTheMinorityAndTheFirstOperationThatDiffers) {
  const auto ranks = waiting_ranks(70, 2, 60);
  ASSERT_EQ(judge(ranks, kLimits), Trouble::desynchronized) << "the marks at 64 differ";
  const auto text = summary(ranks, Trouble::desynchronized, kLimits, "f");
  EXPECT_THAT(
      text,
      StartsWith("the ranks are desynchronized at operation #60: rank 2 on node1 differs from the others"));
  EXPECT_THAT(text, HasSubstr("\n  ranks 0-1, 3: unshard #60 of model.layers.0 (4.00 KiB)"));
  EXPECT_THAT(text, HasSubstr("\n  rank 2: reduce #60 of model.layers.0 (1.00 MiB)"));
}

TEST(Diagnosis, WaitsUntilAllHaveToldOfADifference) {
  auto ranks = waiting_ranks(70, 2, 60);
  ranks[3] = waiting_ranks(50)[3];
  EXPECT_EQ(judge(ranks, kLimits), Trouble::none);
  ranks[3] = waiting_ranks(130)[3];  // past the next mark: that of 64 is still there
  EXPECT_EQ(judge(ranks, kLimits), Trouble::desynchronized);
}

TEST(Diagnosis, SaysThatTheFirstDifferenceIsOutOfSight) {
  const auto ranks = waiting_ranks(200, 2, 60);
  ASSERT_EQ(judge(ranks, kLimits), Trouble::desynchronized);
  EXPECT_THAT(summary(ranks, Trouble::desynchronized, kLimits, "f"),
              StartsWith("the ranks are desynchronized before operation #128: rank 2 on node1"));
}

TEST(Diagnosis, NamesTheMinorityThoughTheRanksHaveGoneOnSince) {
  const auto then = waiting_ranks(70, 2, 60);
  ASSERT_EQ(judge(then, kLimits), Trouble::desynchronized);
  auto ranks = then;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    // Each was heard last at another time, and its latest marks are none of another's.
    const int operations = 4'000'000 * static_cast<int>(r + 1);
    for (std::size_t i = 0; i < ranks[r].heartbeat.marks.size(); ++i)
      ranks[r].heartbeat.marks[i] = {operations + 64 * i, 1000 * r + i};
    auto report = *ranks[r].report;
    report.last = {};
    ranks[r].report = std::make_shared<FlightReport>(report);
  }
  EXPECT_THAT(summary(ranks, Trouble::desynchronized, kLimits, "f"),
              Not(HasSubstr("rank 2 on node1 differs from the others")));
  for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r].marks_at_alarm = then[r].heartbeat.marks;
  EXPECT_THAT(
      summary(ranks, Trouble::desynchronized, kLimits, "f"),
      StartsWith(
          "the ranks are desynchronized before operation #64: rank 2 on node1 differs from the others"));
}

TEST(Diagnosis, AStandstillOfRanksThatDifferIsTheirDifference) {
  auto ranks = waiting_ranks(63, 1, 63);  // before any mark
  EXPECT_EQ(judge(ranks, kLimits), Trouble::none);
  hold_all(ranks, 11);
  ASSERT_EQ(judge(ranks, kLimits), Trouble::stalled);
  EXPECT_THAT(summary(ranks, Trouble::stalled, kLimits, "f"),
              StartsWith("the ranks are desynchronized at operation #63: rank 1 on node0"));
}

TEST(Diagnosis, WithoutAMajorityAllAreNamed) {
  auto ranks = waiting_ranks(63, 1, 63);
  ranks.resize(2);
  const auto text = summary(ranks, Trouble::stalled, kLimits, "f");
  EXPECT_THAT(text, StartsWith("the ranks are desynchronized at operation #63\n"));
  EXPECT_THAT(text, HasSubstr("\n  rank 0: unshard #63"));
  EXPECT_THAT(text, HasSubstr("\n  rank 1: reduce #63"));
}

TEST(Diagnosis, ListsOfRanksAreShort) {
  EXPECT_EQ(comm::format_ranks({3}), "rank 3");
  EXPECT_EQ(comm::format_ranks({0, 1, 2, 5, 7, 8}), "ranks 0-2, 5, 7-8");
  std::vector<int> every_second;
  for (int rank = 0; rank < 1024; rank += 2) every_second.push_back(rank);
  const std::string some = comm::format_ranks(every_second);
  EXPECT_THAT(some, ::testing::StartsWith("ranks 0, 2, 4, "));
  EXPECT_THAT(some, ::testing::EndsWith(", 62, ... (512 in all)"));
  EXPECT_EQ(comm::format_placement({0, 0, 1, 0, 1, 1}), "ranks 0-1, 3; ranks 2, 4-5");
}

}  // namespace
}  // namespace llampi::test
