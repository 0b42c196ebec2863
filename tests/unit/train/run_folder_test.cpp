// SPDX-License-Identifier: Apache-2.0
// Who may have a run's folder, and what is done to it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "llampi/core/error.hpp"
#include "llampi/train/run_checkpoints.hpp"
#include "llampi/train/run_text.hpp"
#include "support/full_disk.hpp"
#include "support/temporary_folder.hpp"
#include "train/run_folder.hpp"

namespace llampi::test {
namespace {

using namespace train;

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// As a run writes it.
std::string noted(const std::string& config) { return with_note(config, "data.train", "3000 tokens"); }
const std::string kConfig = noted("[run]\n");

void write(const fs::path& file, const std::string& text) { std::ofstream(file) << text; }

RunFolder opened(const fs::path& folder, const std::string& config, std::int64_t last_step = 0) {
  RunFolder run(folder, Log(), 0.2);
  run.open(config, {}, last_step);
  return run;
}

template <class Work>
void expect_refusal(const fs::path& folder, const Work& work) {
  try {
    work();
    FAIL() << "two jobs in one folder";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr(folder.string() + " is in use by another job"));
  }
}

TEST(RunFolder, IsMadeAndTidied) {
  const TemporaryFolder folder;
  const fs::path run = folder / "a/run";
  { const RunFolder refused(run, Log(), 0.2); }
  EXPECT_FALSE(fs::exists(folder / "a")) << "there was nothing to run";
  {
    RunFolder made(run, Log(), 0.2);
    made.open(kConfig, {.traces = true, .tensorboard = true}, 0);
  }
  EXPECT_EQ(io::read_whole(run / "config.ini"), kConfig);
  EXPECT_TRUE(fs::is_directory(run / "trace"));
  write(run / "checkpoints" / "step-00000002.h5.tmp", "a part");
  write(run / "metrics.jsonl", "{\"step\": 1, \"loss\": 2}\n{\"step\": 2, \"loss\": 1}\n{\"st");
  auto again = opened(run, noted("[run]\nseed = 7\n"), 1);
  EXPECT_EQ(io::read_whole(run / "config.ini"), noted("[run]\nseed = 7\n"));
  EXPECT_TRUE(fs::is_empty(run / "checkpoints"));
  EXPECT_EQ(io::read_whole(run / "metrics.jsonl"), "{\"step\": 1, \"loss\": 2}\n");
  EXPECT_TRUE(again.metrics().ends_with_step(1));
}

/// As a job that ended for want of room left it: the next one saves into checkpoint.fallback_dir.
TEST(RunFolder, IsOpenedOnAFullDisk) {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  opened(run, kConfig);
  const std::string kept = "{\"step\": 1, \"loss\": 2}\n";
  write(run / "metrics.jsonl", kept + "{\"step\": 2, \"loss\": 1}\n{\"st");
  write(run / "history.jsonl", "{\"event\": \"start\"}\n{\"eve");
  std::vector<std::string> lines;
  const Log log([&](const std::string& line) { lines.push_back(line); });
  {
    RunFolder again(run, log, 0.2);
    const FullDisk full;
    again.open(kConfig, {.tensorboard = true}, 1, log);
    EXPECT_NE(again.add_metrics("{\"step\": 2}\n"), "") << "there is no room";
    EXPECT_THAT(again.metrics().unwritten(), HasSubstr("\"step\": 2"));
  }
  EXPECT_EQ(io::read_whole(run / "config.ini"), kConfig);
  EXPECT_EQ(io::read_whole(run / "metrics.jsonl"), kept);
  EXPECT_EQ(io::read_whole(run / "history.jsonl"), "{\"event\": \"start\"}\n{\"eve")
      << "only ever appended to";
  EXPECT_THAT(lines, ElementsAre(HasSubstr("nothing is written for TensorBoard")));

  RunFolder changed(run, Log(), 0.2);
  const FullDisk full;
  EXPECT_THROW(changed.open(noted("[run]\nseed = 7\n"), {}, 1), UserError);
  EXPECT_EQ(io::read_whole(run / "config.ini"), kConfig) << "it is whole";
}

TEST(RunFolder, ReplacesNoFilesButThoseOfARun) {
  for (const std::string name : {"config.ini", "metrics.jsonl", "history.jsonl"}) {
    const TemporaryFolder folder;
    write(folder / name, "mine\n");
    if (name != "history.jsonl") {
      fs::create_directory(folder / "checkpoints");
      write(folder / "checkpoints" / "model.pt", "of another program");
    }
    try {
      opened(folder.path(), kConfig);
      FAIL() << name;
    } catch (const UserError& error) {
      EXPECT_EQ(error.what(), "run.dir = " + folder.path().string() + " has no run but a " + name +
                                  ", which a run would replace; choose another run.dir");
    }
    EXPECT_EQ(io::read_whole(folder / name), "mine\n");
  }
}

TEST(RunFolder, IsStillARunsWithoutItsCheckpoints) {
  const TemporaryFolder folder;
  const std::string config = with_note("[run]\nseed = 1\n", "data.train", "3000 tokens");
  opened(folder.path(), config);
  write(folder / "metrics.jsonl", "{\"step\": 1, \"loss\": 2}\n");
  fs::rename(folder / "checkpoints", folder / "moved-away");
  opened(folder.path(), noted("[run]\nseed = 2\n"));
  EXPECT_EQ(io::read_whole(folder / "config.ini"), noted("[run]\nseed = 2\n"));
  EXPECT_TRUE(fs::is_directory(folder / "checkpoints"));
}

// As where old files are purged: nothing but its metrics is left of the run.
TEST(RunFolder, KeepsTheMetricsOfARunWhoseCheckpointsAreGone) {
  const TemporaryFolder folder;
  const std::string text = "{\"step\": 1, \"loss\": 2}\n";
  opened(folder.path(), kConfig).history().append(start_json({.step = 0}, 0));
  std::vector<std::string> lines;
  const Log log([&](const std::string& line) { lines.push_back(line); });
  const auto open_again = [&] {
    write(folder / "metrics.jsonl", text);
    RunFolder run(folder.path(), log, 0.2);
    run.open(kConfig, {}, 0, log);
    run.history().append(start_json({.step = 0}, 1e9));
    run.history().append(checkpoint_json(8, "checkpoints/b.h5", CheckpointContent::all, 0.25, 1e9));
    return io::read_whole(folder / "metrics.jsonl");
  };
  EXPECT_EQ(open_again(), "") << "a run without checkpoints begins again";
  EXPECT_TRUE(lines.empty());
  for (const std::string aside : {"metrics-lost-1.jsonl", "metrics-lost-2.jsonl"}) {
    lines.clear();
    EXPECT_EQ(open_again(), "");
    EXPECT_EQ(io::read_whole(folder / aside), text);
    EXPECT_THAT(lines, ElementsAre(HasSubstr("is gone are now in " + (folder / aside).string())));
  }
}

// Which went elsewhere with the checkpoint of its last step; where there still is no room, another time.
TEST(RunFolder, OfAFinishedRunGetsItsMetrics) {
  const TemporaryFolder folder, elsewhere;
  const fs::path fallback = fallback_folder(folder.path(), elsewhere.path()),
                 metrics = folder / "metrics.jsonl", spilled = fallback / "metrics-to-00000002.jsonl";
  opened(folder.path(), kConfig);
  fs::create_directories(fallback);
  const std::string one = "{\"step\": 1, \"loss\": 2}\n", two = "{\"step\": 2, \"loss\": 1}\n";
  write(metrics, one + "{\"st");
  write(spilled, two);
  std::vector<std::string> lines;
  const Log log([&](const std::string& line) { lines.push_back(line); });
  const auto restore = [&](std::int64_t step) {
    RunFolder(folder.path(), log, 0.2).restore_metrics(step, log, elsewhere.path());
    return io::read_whole(metrics);
  };
  EXPECT_EQ(restore(3), one + "{\"st") << "those are of another checkpoint";
  {
    RunFolder run(folder.path(), log, 0.2);
    const FullDisk full;
    run.restore_metrics(2, log, elsewhere.path());
  }
  EXPECT_THAT(lines, ElementsAre(HasSubstr("lines that are only in " + fallback.string() + " stay there")));
  EXPECT_TRUE(fs::exists(spilled));
  EXPECT_EQ(restore(2), one + two);
  EXPECT_FALSE(fs::exists(spilled));
}

// Of a run that was, whose lines would return to the metrics of the next one.
TEST(RunFolder, PutsLinesElsewhereAsideWhereARunBegins) {
  const TemporaryFolder folder, elsewhere;
  const fs::path fallback = fallback_folder(folder.path(), elsewhere.path());
  fs::create_directories(fallback);
  write(fallback / "metrics-to-00000100.jsonl", "{\"step\": 1, \"loss\": 2}\n");
  const auto metrics_from = [&](std::int64_t last_step) {
    RunFolder run(folder.path(), Log(), 0.2);
    run.open(kConfig, {}, last_step, Log(), elsewhere.path());
    return io::read_whole(folder / "metrics.jsonl");
  };
  EXPECT_EQ(metrics_from(0), "");
  EXPECT_TRUE(fs::exists(fallback / "metrics-lost-1.jsonl"));
  EXPECT_EQ(metrics_from(50), "");
}

TEST(RunFolder, IsOneJobsAtATime) {
  const TemporaryFolder folder;
  {
    const auto first = opened(folder.path(), noted("first\n"));
    write(folder / "checkpoints/step-00000002.h5.tmp", "what the first one writes");
    expect_refusal(folder.path(), [&] { const RunFolder second(folder.path(), Log(), 0.2); });
    EXPECT_EQ(io::read_whole(folder / "config.ini"), noted("first\n"));
    EXPECT_TRUE(fs::exists(folder / "checkpoints/step-00000002.h5.tmp"));
    int turns = 0;
    expect_refusal(folder.path(),
                   [&] { const RunFolder second(folder.path(), Log(), 0.2, [&] { ++turns; }); });
    EXPECT_GT(turns, 0) << "the watchdog must see that it waits";
  }
  const auto third = opened(folder.path(), noted("third\n"));
  EXPECT_EQ(io::read_whole(folder / "config.ini"), noted("third\n"));
}

TEST(RunFolder, SaysWhichJobHasIt) {
  const TemporaryFolder folder;
  ::setenv("SLURM_JOB_ID", "4711", 1);
  std::vector<std::string> lines;
  const Log log([&](const std::string& line) { lines.push_back(line); });
  const auto wait = [&]() -> std::string {
    lines.clear();
    try {
      const RunFolder second(folder.path(), log, 0.2);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  {
    const auto first = opened(folder.path(), noted("first\n"));
    const std::string job = fmt::format("{} is in use by another job (Slurm job 4711, process {} on ",
                                        folder.path().string(), ::getpid());
    EXPECT_THAT(wait(), AllOf(HasSubstr(job), HasSubstr(", since 20"), HasSubstr("; wait for it to finish")));
    EXPECT_THAT(lines, ElementsAre(AllOf(HasSubstr(job),
                                         HasSubstr("; waiting up to 0 s for it to finish, then giving up"))));
    // What a job that was killed has left is not told of the one that has the folder now.
    const std::string own = io::read_whole(folder / "running.json");
    const auto at = own.find(fmt::format(":{},", ::getpid()));
    ASSERT_NE(at, std::string::npos) << own;
    write(folder / "running.json", own.substr(0, at + 1) + "999999999" + own.substr(own.find(',', at)));
    EXPECT_THAT(wait(), HasSubstr("in use by another job; wait"));
    write(folder / "running.json", own.substr(0, 20));
    EXPECT_THAT(wait(), HasSubstr("in use by another job; wait"));
  }
  ::unsetenv("SLURM_JOB_ID");
  EXPECT_FALSE(fs::exists(folder / "running.json"));
  EXPECT_EQ(wait(), "");
  EXPECT_FALSE(fs::exists(folder / "running.json"));
}

TEST(RunFolder, StaysLockedWhenConfigIniIsReplaced) {
  const TemporaryFolder folder;
  const auto first = opened(folder.path(), noted("first\n"));
  write(folder / "edited", noted("edited\n"));
  fs::rename(folder / "edited", folder / "config.ini");  // as sed -i and editors do
  expect_refusal(folder.path(), [&] { const RunFolder second(folder.path(), Log(), 0.2); });
  fs::remove(folder / "config.ini");
  expect_refusal(folder.path(), [&] { const RunFolder second(folder.path(), Log(), 0.2); });
}

// The second would see nothing to continue from.
TEST(RunFolder, IsLockedBeforeItIsWritten) {
  const TemporaryFolder folder;
  const fs::path run = folder / "a/run";
  auto first = std::make_unique<RunFolder>(run, Log(), 0.2);
  expect_refusal(run, [&] { const RunFolder second(run, Log(), 0.2); });
  {
    // The first one is refused meanwhile.
    RunFolder second(run, Log(), 60, [&] { first.reset(); });
    expect_refusal(run, [&] { const RunFolder third(run, Log(), 0.2); });
    second.open(noted("second\n"), {}, 0);
  }
  EXPECT_EQ(io::read_whole(run / "config.ini"), noted("second\n"));
}

/// Both find that it is not there.
TEST(RunFolder, OfTwoJobsThatMakeItTheSecondRemovesNothingOfTheFirst) {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  {
    const RunFolder second(run, Log(), 0.2);
    write(run / "history.jsonl", "{\"event\": \"start\"}\n");  // as the first, which has had it meanwhile
  }
  EXPECT_EQ(io::read_whole(run / "history.jsonl"), "{\"event\": \"start\"}\n");
}

TEST(RunFolder, KeepsTheConfigurationOfTheLastJobWhereTheNextIsRefused) {
  const TemporaryFolder folder;
  opened(folder.path(), noted("first\n"));
  fs::remove(folder / "metrics.jsonl");
  fs::create_directory(folder / "metrics.jsonl");
  EXPECT_THROW(opened(folder.path(), noted("second\n")), UserError);
  EXPECT_EQ(io::read_whole(folder / "config.ini"), noted("first\n"));
}

TEST(RunFolder, MustBeNamed) {
  const TemporaryFolder folder;
  write(folder / "file", "");
  EXPECT_THROW(RunFolder("", Log(), 0), UserError);
  EXPECT_THROW(RunFolder(folder / "file", Log(), 0), UserError);
}

}  // namespace
}  // namespace llampi::test
