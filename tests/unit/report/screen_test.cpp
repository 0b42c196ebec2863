// SPDX-License-Identifier: Apache-2.0
#include "llampi/report/screen.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "llampi/report/summary.hpp"

namespace llampi::test {
namespace {

using namespace report;

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr double kGap = std::numeric_limits<double>::quiet_NaN();
using Values = std::vector<double>;
constexpr std::int64_t kGiB = std::int64_t{1} << 30;

report::Run run_with(int steps) {
  report::Run run;
  run.folder = "runs/a";
  run.total_steps = 40;
  run.ranks = 3;
  run.nodes = 1;
  run.device = "cpu: reference kernels";
  run.planned_bytes = {{"device", 1 << 20}};
  for (int i = 1; i <= steps; ++i) {
    run.steps.step.push_back(i);
    run.steps.time.push_back(1e9 + i);
    run.steps.tokens.push_back(100.0 * i);
    run.steps.values["loss"].push_back(5.0 / i);
    run.steps.values["grad_norm"].push_back(i % 3);
    run.steps.values["lr"].push_back(1e-3);
    run.steps.values["tokens_per_second"].push_back(123456);
    run.steps.values["step_seconds"].push_back(0.5);
    run.steps.values["data_seconds"].push_back(0.05);
    run.steps.values["memory_bytes"].push_back(2 << 20);
  }
  return run;
}

int columns_of(const std::string& line) {
  return static_cast<int>(std::count_if(
      line.begin(), line.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

TEST(Plot, DrawsACurveInAscii) {
  EXPECT_THAT(plot(Values{0, 1, 2}, 3, 3, false), ElementsAre("  *", " * ", "*  "));
  EXPECT_THAT(plot(Values{0, 2}, 2, 3, false), ElementsAre(" *", " *", "* ")) << "neighbours are joined";
  EXPECT_THAT(plot(Values{0, kGap, 2}, 3, 3, false), ElementsAre("  *", "   ", "*  ")) << "not over a gap";
  EXPECT_THAT(plot(Values{1, 1}, 3, 1, false), ElementsAre("***")) << "fewer values than columns";
  EXPECT_THAT(plot(Values{0, 0, 2, 2, 4, 4}, 3, 3, false), ElementsAre("  *", " * ", "*  "))
      << "more values: their means";
  EXPECT_THAT(plot(Values{kGap}, 2, 1, false), ElementsAre("  "));
  EXPECT_THAT(plot(Values{}, 2, 1, false), ElementsAre("  "));
}

TEST(Plot, DrawsEightDotsInABrailleCharacter) {
  EXPECT_THAT(plot(Values{0, 0}, 1, 1, true), ElementsAre("⠉")) << "both dots of the upper row";
  EXPECT_THAT(plot(Values{0, 3}, 1, 1, true), ElementsAre("⡸"));
  EXPECT_THAT(plot(Values{3, 2, 1, 0}, 2, 1, true), ElementsAre("⠑⢄"));
}

TEST(Plot, DrawsNoRoundings) {
  const double value = 3e-4;
  const Values constant(13, value);
  EXPECT_THAT(plot(constant, 40, 3, false),
              ElementsAre(std::string(40, '*'), std::string(40, ' '), std::string(40, ' ')));
  EXPECT_THAT(plot(Values{value, std::nextafter(value, 1)}, 2, 2, false), ElementsAre("**", "  "));
  EXPECT_THAT(plot(Values{1e13, 1e13 - 9000}, 2, 2, false), ElementsAre("**", "  "));
}

TEST(ScreenLines, CutOffTheBeginningOfALongFolder) {
  auto run = run_with(10);
  const std::string state = summarize(run, 1e9 + 12).state;
  const auto first = [&](const std::string& folder, int columns) {
    run.folder = folder;
    return screen_lines(run, {columns, 24, true}, 1e9 + 12).at(0);
  };
  const std::string longer = std::string(100, 'x') + "/name";
  const std::string line = first(longer, 80);
  EXPECT_EQ(columns_of(line), 80);
  EXPECT_THAT(line, StartsWith("...xxx"));
  EXPECT_TRUE(line.ends_with("x/name: " + state)) << line;
  EXPECT_THAT(first(longer, 12), StartsWith("...name: ")) << "the name is always there";
  EXPECT_EQ(first("runs/a", 80), "runs/a: " + state);
}

TEST(ScreenLines, TellWhereARunIs) {
  auto run = run_with(10);
  run.running = "process 7 on node1";
  run.evaluations = {{5, 10}, {1e9, 1e9}, {500, 1000}, {2, 2.5}};
  run.history = {{HistoryEvent::Kind::start, 1e9, 0},
                 {HistoryEvent::Kind::checkpoint, 1e9 + 9, 8, 0.25, "x"}};
  for (int rank = 0; rank < 3; ++rank)
    run.trace.push_back({.rank = rank,
                         .steps = 3,
                         .first_step = 3,
                         .last_step = 5,
                         .step = 1,
                         .compute = rank == 2 ? 0.75 : 0.5});
  run.traces_left_out = "1 that cannot be read";
  const auto lines = screen_lines(run, {.columns = 90, .rows = 40, .utf8 = false}, 1e9 + 10);
  EXPECT_EQ(lines[0], "runs/a: running (process 7 on node1)");
  EXPECT_EQ(lines[1], "step 10 of 40  ######..................  25 %  15s left");
  EXPECT_EQ(lines[2], "loss 0.5  gradient norm 1  learning rate 0.001  labels so far 1000");
  EXPECT_EQ(lines[3], "123.5k tokens/s  step 500 ms  waiting for data 10.0 %  MFU -");
  EXPECT_EQ(lines[4], "memory 2.00 MiB resident, 1.00 MiB planned  3 ranks, 1 node");
  EXPECT_EQ(lines[5], "evaluation: loss 2.5 at step 10, best 2 at step 5");
  EXPECT_EQ(lines[6], "checkpoint: step 8, 1s ago, written in 250 ms");
  EXPECT_EQ(lines[7], "trace of steps 3-5: rank 2 computes longest, 750 ms, 50 % over the median");
  EXPECT_EQ(lines[8], "traces left out: 1 that cannot be read");
  EXPECT_THAT(lines[9], StartsWith("loss "));
  EXPECT_THAT(lines[9], HasSubstr("gradient norm"));
  EXPECT_THAT(lines, Contains(StartsWith("learning rate")));
  run.ranks = 2;
  EXPECT_THAT(screen_lines(run, {}, 1e9 + 10), Not(Contains(StartsWith("trace of")))) << "of an earlier job";
  run.trace.pop_back();
  run.trace.back().compute = 1;
  EXPECT_THAT(screen_lines(run, {}, 1e9 + 10),
              Contains("trace of steps 3-5: rank 1 computes longest, 1 s, 33 % over the median"));
  report::Run went_back = run;
  run.history.push_back({HistoryEvent::Kind::start, 1e9 + 10, 8});
  EXPECT_THAT(screen_lines(run, {}, 1e9 + 10), Not(Contains(StartsWith("trace of")))) << "of an earlier job";
  went_back.history.push_back({HistoryEvent::Kind::start, 1e9 + 10, 1});
  EXPECT_THAT(screen_lines(went_back, {}, 1e9 + 10), Contains(StartsWith("trace of")));
  went_back.trace_time = 1e9 + 9;
  EXPECT_THAT(screen_lines(went_back, {}, 1e9 + 10), Not(Contains(StartsWith("trace of"))));
}

TEST(ScreenLines, OfARunThatWasContinuedMixNoJobs) {
  auto run = run_with(10);
  run.history = {{HistoryEvent::Kind::start, 1e9, 0}, {HistoryEvent::Kind::start, 1e9, 7}};
  run.device = "NVIDIA H100";
  run.ranks = 1024;
  run.nodes = 128;
  run.planned_bytes = {{"device", 70 * kGiB}};
  auto& values = run.steps.values;
  for (std::size_t i = 0; i < 10; ++i) {
    values["memory_bytes"][i] = static_cast<double>((i < 7 ? 79 : 75) * kGiB);
    values["data_seconds"][i] = i < 7 ? 0.5 : 0.05;
  }
  const auto lines = screen_lines(run, {.columns = 80, .rows = 10, .utf8 = false}, 1e9);
  EXPECT_THAT(lines[3], HasSubstr("  waiting for data 10.0 %  "));
  EXPECT_EQ(lines[4], "memory 75.00 GiB in use, 70.00 GiB planned  1,024 ranks, 128 nodes  2 jobs");
}

TEST(ScreenLines, SayThatLinesCannotBeRead) {
  report::Run run;
  run.folder = "a";
  run.unreadable_lines = 7;
  EXPECT_THAT(screen_lines(run, {}, 0),
              ElementsAre("a: not running", "step 0", "metrics.jsonl has lines that cannot be read: 7"));
}

TEST(ScreenLines, NameTheRankThatIsMostOftenTheSlowest) {
  auto run = run_with(60);
  for (int i = 1; i <= 60; ++i) {
    run.steps.values["slowest_rank"].push_back(i % 5 == 0 ? 1 : 3);
    run.steps.values["slowest_rank_seconds"].push_back(i % 5 == 0 ? 0.9 : 0.4);
    run.steps.values["mean_rank_seconds"].push_back(i % 5 == 0 ? 0.8 : 0.25);
  }
  EXPECT_THAT(screen_lines(run, {.columns = 90, .rows = 40, .utf8 = false}, 1e9),
              Contains("slowest in 40 of 50 steps: rank 3, computing 400 ms a step; average rank 250 ms"));
  // Another number of ranks from step 58 on; a job after that has no step yet.
  run.history = {{HistoryEvent::Kind::start, 1e9, 0},
                 {HistoryEvent::Kind::start, 1e9, 57},
                 {HistoryEvent::Kind::start, 1e9, 60}};
  run.steps.values["mean_rank_seconds"].back() = 0.5;
  EXPECT_THAT(screen_lines(run, {.columns = 90, .rows = 40, .utf8 = false}, 1e9),
              Contains("slowest in 2 of 3 steps: rank 3, computing 400 ms a step; average rank 250 ms"));
}

TEST(ScreenLines, FitTheScreen) {
  for (const int columns : {1, 11, 12, 20, 40, 80, 200}) {
    for (const int rows : {1, 5, 10, 24, 60}) {
      for (const bool utf8 : {false, true}) {
        const auto lines = screen_lines(run_with(30), {columns, rows, utf8}, 1e9);
        EXPECT_LE(std::ssize(lines), rows);
        for (const auto& line : lines) EXPECT_LE(columns_of(line), columns) << line;
        if (utf8) continue;
        for (const auto& line : lines)
          EXPECT_TRUE(std::ranges::all_of(line, [](char c) { return c >= ' ' && c <= '~'; })) << line;
      }
    }
  }
}

TEST(ScreenLines, KeepTheirNumbersOnANarrowScreen) {
  auto run = run_with(10);
  run.running = "process 7 on node1";
  const auto lines = screen_lines(run, {.columns = 34, .rows = 10, .utf8 = false}, 1e9);
  EXPECT_EQ(lines[1], "step 10 of 40  #..  25 %  15s left");
}

TEST(ScreenLines, OfARunThatDoesNotRunSayNotThatItEndsSoon) {
  const auto lines = screen_lines(run_with(10), {.columns = 60, .rows = 10, .utf8 = false}, 1e9);
  EXPECT_THAT(lines[1], EndsWith("  25 %  15s of training left"));
}

TEST(ScreenLines, HaveOnlyWhatTheTerminalCanShow) {
  report::Run run;
  run.folder = "caf\xc3\xa9\xc2\x9b";
  EXPECT_EQ(screen_lines(run, {.utf8 = true}, 0)[0], "caf\xc3\xa9?: not running");
  EXPECT_EQ(screen_lines(run, {.utf8 = false}, 0)[0], "caf??: not running");
}

TEST(ScreenLines, OfARunWithoutStepsAreThereToo) {
  report::Run run;
  run.folder = "a\x1b[2J";
  const auto lines = screen_lines(run, {}, 0);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0], "a?[2J: not running");
  EXPECT_EQ(lines[1], "step 0");
}

}  // namespace
}  // namespace llampi::test
