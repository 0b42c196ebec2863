// SPDX-License-Identifier: Apache-2.0
// What is read from the folder of a run, while it is written and when it is damaged.
#include "llampi/report/run.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "llampi/core/process.hpp"
#include "llampi/report/summary.hpp"
#include "support/files.hpp"

namespace llampi::test {
namespace {

using namespace report;

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsNan;
using ::testing::SizeIs;
using ::testing::StartsWith;

class RunFiles : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const { write_text(folder_ / name, text); }
  void append(const std::string& text) const {
    std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << text;
  }
  const fs::path& folder() const { return folder_.path(); }

  TemporaryFolder folder_;
};

std::string line(int step, double loss, const std::string& more = "") {
  return fmt::format(R"({{"step": {}, "loss": {}, "tokens_seen": {}, "step_seconds": 2, "mfu": null{}}})",
                     step, loss, 100 * step, more) +
         "\n";
}

std::string running_json(const std::string& host, int process,
                         const std::string& since = "1970-01-01T00:01:38Z") {
  return fmt::format(R"({{"job":"Slurm job 17","host":"{}","process":{},"processes_of":"{}","since":"{}"}})",
                     host, process, process_namespace(), since);
}

TEST_F(RunFiles, AreFollowedWhileTheyGrow) {
  write("metrics.jsonl", line(1, 4.5, R"(, "time": 100)"));
  RunReader reader(folder());
  EXPECT_THAT(reader.run().steps.step, ElementsAre(1));
  append(line(2, 4, R"(, "time": 102)") + R"({"step": 2, "eval_loss": 4.25, "time": 103})" +
         "\n{\"step\": 3, \"lo");
  reader.update();
  EXPECT_THAT(reader.run().steps.step, ElementsAre(1, 2)) << "the last line is being written";
  append("ss\": 3, \"time\": 105}\n");
  reader.update();
  const report::Run& run = reader.run();
  EXPECT_THAT(run.steps.step, ElementsAre(1, 2, 3));
  EXPECT_THAT(*run.steps.find("loss"), ElementsAre(4.5, 4, 3));
  EXPECT_THAT(*run.steps.find("step_seconds"), ElementsAre(2, 2, IsNan())) << "the third line has none";
  EXPECT_THAT(*run.steps.find("mfu"), ElementsAre(IsNan(), IsNan(), IsNan()));
  EXPECT_EQ(run.steps.find("loss_scale"), nullptr);
  EXPECT_THAT(run.steps.time, ElementsAre(100, 102, 105));
  EXPECT_THAT(run.evaluations.step, ElementsAre(2));
  EXPECT_THAT(run.evaluations.loss, ElementsAre(4.25));
  EXPECT_THAT(run.evaluations.tokens, ElementsAre(200));
  EXPECT_EQ(run.unreadable_lines, 0);
}

TEST_F(RunFiles, AreReadAnewWhereTheyWereCutBack) {
  write("metrics.jsonl", line(1, 4) + line(2, 3) + line(3, 2));
  RunReader reader(folder());
  write("new", line(1, 4) + line(2, 7) + line(3, 8) + line(4, 9));
  fs::rename(folder() / "new", folder() / "metrics.jsonl");
  reader.update();
  EXPECT_THAT(*reader.run().steps.find("loss"), ElementsAre(4, 7, 8, 9));
  fs::rename(folder() / "metrics.jsonl", folder() / "away");
  reader.update();
  fs::create_directory(folder() / "metrics.jsonl");
  reader.update();
  EXPECT_EQ(reader.run().last_step(), 4) << "a file that cannot be read for a while ends nothing";
}

TEST_F(RunFiles, WithoutTimesAreGivenThem) {
  write("metrics.jsonl", line(1, 4) + line(2, 3) + line(3, 2, R"(, "time": 50)"));
  EXPECT_THAT(read_run(folder()).steps.time, ElementsAre(46, 48, 50));
}

TEST_F(RunFiles, MayHoldLinesThatCannotBeRead) {
  write("metrics.jsonl", "\xff\xfe\n[1]\n" + line(1, 4) + "{\"step\": \"one\"}\n\n" + line(2, 3));
  write("history.jsonl", "{\"event\":\"st\n{\"event\":\"later\",\"time\":3}\n");
  write("config.ini", "no configuration");
  write("running.json", "{");
  const report::Run run = read_run(folder());
  EXPECT_THAT(run.steps.step, ElementsAre(1, 2));
  EXPECT_EQ(run.unreadable_lines, 4);
  EXPECT_THAT(run.history, SizeIs(0));
  EXPECT_FALSE(run.running);
}

TEST_F(RunFiles, OfKeysThatAreNotShownTakeNoMemory) {
  std::string text;
  for (int i = 1; i <= 100; ++i) text += line(i, 4, fmt::format(R"(, "later_{}": 1)", i));
  write("metrics.jsonl", text);
  EXPECT_EQ(read_run(folder()).steps.values.size(), 3U) << "loss, step_seconds, mfu";
}

TEST_F(RunFiles, MayBeEmpty) {
  write("metrics.jsonl", "");
  const report::Run run = read_run(folder());
  EXPECT_EQ(run.last_step(), 0);
  EXPECT_EQ(summarize(run, 0).step, 0);
}

TEST_F(RunFiles, MayHaveNoMetricsYetWhereTheRunStarts) {
  write("running.json", running_json(host_name(), ::getpid()));
  RunReader reader(folder());
  EXPECT_TRUE(reader.run().running);
  write("metrics.jsonl", line(1, 4));
  reader.update();
  EXPECT_THAT(reader.run().steps.step, ElementsAre(1));
}

std::string history(const std::vector<std::pair<const char*, int>>& events) {
  std::string text;
  for (const auto& [event, step] : events)
    text += fmt::format(R"({{"event": "{}", "step": {}, "time": {}}})", event, step, text.size()) + "\n";
  return text;
}

std::vector<std::int64_t> checkpoints_of(const report::Run& run) {
  std::vector<std::int64_t> steps;
  for (const auto& event : run.history) {
    if (event.kind == HistoryEvent::Kind::checkpoint) steps.push_back(event.step);
  }
  return steps;
}

TEST_F(RunFiles, KnowWhichCheckpointsAreGone) {
  write("metrics.jsonl", line(1, 4));
  write("history.jsonl",
        history({{"start", 0}, {"checkpoint", 100}, {"checkpoint", 200}, {"end", 250}, {"start", 100}}));
  EXPECT_THAT(checkpoints_of(read_run(folder())), ElementsAre(100));
  EXPECT_THAT(read_run(folder()).history, SizeIs(4)) << "both jobs are of this run";
  // One that begins anew in the same folder is another run.
  write("history.jsonl",
        history({{"start", 0}, {"checkpoint", 100}, {"end", 250}, {"start", 0}, {"checkpoint", 50}}));
  EXPECT_THAT(checkpoints_of(read_run(folder())), ElementsAre(50));
  EXPECT_THAT(read_run(folder()).history, SizeIs(2));
  // That was killed before it had one: not another.
  write("history.jsonl", history({{"start", 0}, {"start", 0}, {"checkpoint", 50}}));
  EXPECT_THAT(read_run(folder()).history, SizeIs(3));
}

TEST_F(RunFiles, OfWhatIsNoRunAreRefused) {
  EXPECT_EQ(
      user_error([&] { read_run(folder()); }),
      folder().string() + " is not the folder of a run: it has no metrics.jsonl; give the run.dir of a run");
  EXPECT_THAT(user_error([&] { read_run(folder() / "none"); }), HasSubstr("there is no folder "));
  fs::create_symlink("loop", folder() / "loop");
  EXPECT_EQ(user_error([&] { read_run(folder() / "loop"); }),
            (folder() / "loop").string() + " cannot be read: Too many levels of symbolic links");
  write("metrics.jsonl", "");
  EXPECT_THAT(user_error([&] { read_run(folder() / "metrics.jsonl"); }), HasSubstr("is not a folder"));
}

TEST_F(RunFiles, AreSummedUp) {
  write("metrics.jsonl",
        line(1, 4, R"(, "time": 102, "memory_bytes": 7)") + R"({"step": 1, "eval_loss": 3, "time": 103})" +
            "\n" + line(2, 3.5, R"(, "time": 110, "memory_bytes": 9, "checkpoint_stall_seconds": 0.5)") +
            R"({"step": 2, "eval_loss": 3.25, "time": 111})" + "\n");
  write(
      "history.jsonl",
      R"({"event":"start","time":99,"step":0,"total_steps":6,"ranks":2,"planned_bytes":{"device":5},"peak_bytes":{"logits":3}})"
      "\n"
      R"({"event":"checkpoint","time":104,"step":1,"file":"checkpoints/step-00000001.h5","seconds":0.25})"
      "\n"
      R"({"event":"start","time":106,"step":1,"total_steps":8,"ranks":4,"planned_bytes":{"device":6}})"
      "\n");
  write("running.json", running_json("node7", 4711));
  report::Run run = read_run(folder());
  EXPECT_EQ(run.ranks, 4);
  EXPECT_EQ(run.planned_bytes.at("device"), 6);
  EXPECT_EQ(run.history.front().planned_bytes.at("device"), 5);
  Summary summary = summarize(run, 115);
  EXPECT_EQ(summary.state, "running (Slurm job 17, process 4711 on node7)");
  EXPECT_EQ(summary.step, 2);
  EXPECT_EQ(summary.total_steps, 8);
  EXPECT_EQ(summary.loss, 3.5);
  EXPECT_EQ(summary.eval_loss, 3.25);
  EXPECT_EQ(summary.best_eval_loss, 3);
  EXPECT_EQ(summary.best_eval_step, 1);
  EXPECT_EQ(summary.memory_bytes, 9);
  EXPECT_EQ(summary.seconds_left, 12);
  EXPECT_EQ(summary.seconds_in_steps, 4);
  EXPECT_EQ(summary.seconds_for_checkpoints, 0.5);
  EXPECT_EQ(summary.elapsed_seconds, 11);
  EXPECT_EQ(summary.jobs, 2);
  EXPECT_EQ(summary.checkpoints, 1);
  EXPECT_EQ(summarize(run, 110 + 3700).state,
            "no output for 1h 01m (last: Slurm job 17, process 4711 on node7)");
  run.running.reset();
  EXPECT_EQ(summarize(run, 115).state, "ended without reporting a reason");
  run.history.push_back({HistoryEvent::Kind::end, 112, 2, 0, "stopped"});
  EXPECT_EQ(summarize(run, 115).state, "stopped");
}

TEST_F(RunFiles, OfAJobThatHasJustBegunAreNotSilent) {
  write("metrics.jsonl", line(1, 4, R"(, "time": 102)"));
  write("history.jsonl", R"({"event":"end","time":103,"step":1,"outcome":"stopped"})"
                         "\n");
  write("running.json", running_json("node7", 4711, "1970-01-02T00:00:00Z"));
  report::Run run = read_run(folder());
  EXPECT_EQ(summarize(run, 86400 + 500).state, "running (Slurm job 17, process 4711 on node7)");
  EXPECT_THAT(summarize(run, 86400 + 700).state, StartsWith("no output for 11m 40s ("));
  write("running.json", running_json("node7", 4711, "now"));
  run = read_run(folder());
  EXPECT_THAT(summarize(run, 103 + 700).state, StartsWith("no output for 11m 40s ("));
}

TEST_F(RunFiles, SayWhatRanksWaitedForEachOther) {
  write("metrics.jsonl", line(1, 4) + line(2, 3));
  EXPECT_TRUE(std::isnan(summarize(read_run(folder()), 0).seconds_for_ranks)) << "of one rank or on GPUs";
  write("metrics.jsonl", line(1, 4, R"(, "mean_rank_seconds": 1.5)") + line(2, 3) +
                             line(3, 3, R"(, "mean_rank_seconds": 2.25)") +
                             line(4, 3, R"(, "mean_rank_seconds": 1)"));
  EXPECT_EQ(summarize(read_run(folder()), 0).seconds_for_ranks, 1.5)
      << "0.5 + 1 of steps of 2 s; where the clocks of two ranks differ, no wait is less than none";
}

TEST_F(RunFiles, SayWhyARunFailed) {
  write("metrics.jsonl", line(1, 4));
  write("history.jsonl", R"({"event":"end","time":103,"step":1,"outcome":"failed","reason":"not_finite"})"
                         "\n");
  EXPECT_EQ(summarize(read_run(folder()), 0).state, "failed: loss or gradient not finite");
  write("history.jsonl", R"({"event":"end","time":103,"step":1,"outcome":"failed","reason":"a disk is gone"})"
                         "\n");
  EXPECT_EQ(summarize(read_run(folder()), 0).state, "failed: a disk is gone");
  write("history.jsonl", R"({"event":"end","time":103,"step":1,"outcome":"stopped","reason":"by a signal"})"
                         "\n");
  EXPECT_EQ(summarize(read_run(folder()), 0).state, "stopped by a signal");
}

// As far as the records of its last job say it, of which others may be older.
TEST_F(RunFiles, SayByItsFlightRecordsHowARunEnded) {
  write("metrics.jsonl", line(1, 4, R"(, "time": 100000)"));
  write("history.jsonl", "{\"event\":\"start\",\"time\":100000,\"step\":0}\n");
  std::filesystem::create_directory(folder() / "flight");
  const auto record = [&](const std::string& name, const std::string& reason, const std::string& written,
                          int age) {
    write("flight/" + name, nlohmann::json{{"reason", reason}, {"written", written}}.dump());
    std::filesystem::last_write_time(
        folder() / "flight" / name,
        std::filesystem::file_time_type::clock::now() - std::chrono::seconds(age));
  };
  record("rank-00001.json", "no progress", "1970-01-01T00:00:00Z", 9);
  EXPECT_EQ(summarize(read_run(folder()), 0).state, "ended without reporting a reason")
      << "it is of an earlier job";
  record("rank-00000.json", "a rank exited", "1970-01-02T03:46:40Z", 5);
  EXPECT_EQ(summarize(read_run(folder()), 0).state, "ended: a rank exited (flight records)");
  record("terminated-00002.json", "the process was told to terminate", "1970-01-02T03:46:40Z", 3);
  EXPECT_EQ(summarize(read_run(folder()), 0).state, "ended: a rank exited (flight records)")
      << "which is why rank 2 was told to";
  std::filesystem::remove(folder() / "flight" / "rank-00000.json");
  EXPECT_EQ(summarize(read_run(folder()), 0).state,
            "ended: the process was told to terminate (flight records)");
  write("metrics.jsonl", R"({"step": 2, "loss": 3, "time": 100002})"
                         "\n");
  EXPECT_EQ(summarize(read_run(folder()), 0).state, "ended without reporting a reason")
      << "the alarm has passed";
  write("flight/rank-00002.json", "torn");
  EXPECT_EQ(summarize(read_run(folder()), 0).state, "ended without reporting a reason");
}

TEST_F(RunFiles, OfARunThatHasSavedItsLastStepAreDone) {
  write("metrics.jsonl", line(1, 4) + line(2, 3));
  const std::string start = "{\"event\":\"start\",\"time\":1,\"step\":0,\"total_steps\":2}\n";
  write("history.jsonl", start + "{\"event\":\"checkpoint\",\"time\":2,\"step\":1}\n");
  EXPECT_EQ(summarize(read_run(folder()), 0).state, "ended without reporting a reason");
  write("history.jsonl", start + "{\"event\":\"checkpoint\",\"time\":2,\"step\":2}\n");
  EXPECT_EQ(summarize(read_run(folder()), 0).state, "done");
}

TEST_F(RunFiles, AreNotInUseByAJobThatWasKilledHere) {
  write("metrics.jsonl", line(1, 4, R"(, "time": 102)"));
  write("history.jsonl", "{\"event\":\"start\",\"time\":99,\"step\":0}\n");
  write("running.json", running_json(host_name(), ::getpid()));
  EXPECT_THAT(summarize(read_run(folder()), 103).state, HasSubstr("running (Slurm job 17, process "));
  write("running.json", running_json(host_name(), 999999999));
  EXPECT_EQ(summarize(read_run(folder()), 103).state, "ended without reporting a reason")
      << "at once, not after ten minutes";
}

TEST_F(RunFiles, OfOlderProgramsHaveNoHistory) {
  write("metrics.jsonl", line(1, 4) + line(2, 3));
  write("config.ini", "[train]\nsteps = 2\n");
  EXPECT_EQ(summarize(read_run(folder()), 0).state, "done");
  write("config.ini", "[train]\nsteps = 5\n");
  const Summary summary = summarize(read_run(folder()), 0);
  EXPECT_EQ(summary.state, "not running");
  EXPECT_EQ(summary.seconds_left, 6);
}

}  // namespace
}  // namespace llampi::test
