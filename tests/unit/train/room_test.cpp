// SPDX-License-Identifier: Apache-2.0
// Whether the checkpoints of a run fit, and what is said and done where they do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "llampi/core/error.hpp"
#include "llampi/train/run_checkpoints.hpp"
#include "support/temporary_folder.hpp"
#include "train/room.hpp"

namespace llampi::test {
namespace {

using namespace train;

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::StartsWith;

constexpr std::int64_t kBytes = 1000;  // of a checkpoint

/// By doing one save after the other.
RoomAtTheEnd simulated(const Saves& saves, const checkpoint::Retention& retention,
                       std::vector<SavedFile> files) {
  std::int64_t bytes_now = 0, kept = 0;
  for (const auto& file : files) bytes_now += file.bytes;
  RoomAtTheEnd end;
  for (std::int64_t step = saves.step + 1; step <= saves.total_steps; ++step) {
    if (step != saves.total_steps && (saves.every == 0 || step % saves.every != 0)) continue;
    files.push_back({.step = step, .bytes = kBytes, .has_optimizer = !retention.weights_only});
    kept =
        std::count_if(files.begin(), files.end(), [&](const auto& file) { return file.step > saves.step; });
    std::int64_t bytes = 0;
    for (const auto& file : files) bytes += file.bytes;
    end = {kept, bytes - bytes_now};
    std::optional<std::int64_t> continuable;
    for (const auto& file : files) {
      if (retention.weights_only && file.has_optimizer) continuable = file.step;
    }
    for (std::size_t i = 0; static_cast<std::int64_t>(files.size() - i) > retention.newest;) {
      const bool stays =
          (retention.every > 0 && files[i].step % retention.every == 0) || files[i].step == continuable;
      stays ? static_cast<void>(++i)
            : static_cast<void>(files.erase(files.begin() + static_cast<std::ptrdiff_t>(i)));
    }
  }
  return end;
}

TEST(Room, AtTheEndIsWhatASimulationHas) {
  for (const std::int64_t step : {0, 3, 10}) {
    for (const std::int64_t total : {10, 11, 24, 40}) {
      for (const std::int64_t every : {0, 1, 4, 7}) {
        for (const checkpoint::Retention retention :
             {checkpoint::Retention{1, 0}, {3, 0}, {2, 6}, {3, 1}, {100, 4}, {1, 0, true}, {2, 6, true}}) {
          for (const int existing : {0, 1, 5}) {
            std::vector<SavedFile> files;
            for (int i = 0; i < std::min<std::int64_t>(existing, step); ++i)
              files.push_back({step - existing + i + 1, i % 3 == 0 ? 2100 : 700, i % 3 == 0});
            const Saves saves{step, total, every};
            const auto end = room_at_the_end(saves, retention, kBytes, files),
                       wanted = simulated(saves, retention, files);
            EXPECT_TRUE(end.bytes == wanted.bytes && end.new_files == wanted.new_files) << fmt::format(
                "steps {} to {}, every {}, keep {}, keep_every {}, continuable {}, {} files: {} bytes in {} files, not {} in "
                "{}",
                step, total, every, retention.newest, retention.every, retention.weights_only, files.size(),
                end.bytes, end.new_files, wanted.bytes, wanted.new_files);
          }
        }
      }
    }
  }
}

class RoomOfRun : public ::testing::Test {
 protected:
  RoomOfRun() {
    config_.run.dir = (folder_ / "run").string();
    fs::create_directories(folder_ / "run/checkpoints");
  }
  void have(std::int64_t step) const {
    std::ofstream(checkpoint::checkpoint_path(config_.run.dir, step)) << std::string(kBytes, 'x');
  }
  Room room() {
    Room room(config_, kBytes, fallback_folder(config_),
              [this](const fs::path& folder) { return free(folder); });
    room.note_checkpoints(1000, {});
    return room;
  }
  std::optional<std::int64_t> free(const fs::path& folder) const {
    const auto gone = 10 - std::ssize(checkpoint::list_checkpoints(config_.run.dir));
    return folder.string().find("elsewhere") != std::string::npos ? free_elsewhere_ : free_ + kBytes * gone;
  }
  /// As if so much was free beside ten checkpoints less those that are there.
  void free_is(std::int64_t bytes) {
    free_ = bytes - kBytes * (10 - std::ssize(checkpoint::list_checkpoints(config_.run.dir)));
  }
  std::string refusal() {
    try {
      require_room(room(), log_);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
  Config config_;
  std::int64_t free_ = 0, free_elsewhere_ = 0;
  std::vector<std::string> lines_;
  Log log_{[this](const std::string& line) { lines_.push_back(line); }};
};

TEST_F(RoomOfRun, IsRequiredForTheFirstCheckpoint) {
  free_is(kBytes);
  EXPECT_EQ(refusal(), "");
  free_is(kBytes - 1);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("it needs 1000 B, and 999 B are free in " + config_.run.dir),
                               HasSubstr("set run.dir"), HasSubstr("bfloat16")));
  std::ofstream(config_.run.dir + "/checkpoints/step-00000007.h5.tmp") << "x";  // goes at the start
  EXPECT_EQ(refusal(), "");
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(RoomOfRun, IsMadeByAnOldCheckpointOnlyWhereAnotherStays) {
  config_.checkpoint.keep = 2;
  for (const int step : {2, 4}) have(step);
  free_is(10);
  EXPECT_EQ(refusal(), "");  // the save deletes step 2 anyhow
  room().make_some(log_);
  EXPECT_THAT(checkpoint::list_checkpoints(config_.run.dir),
              ElementsAre(checkpoint::checkpoint_path(config_.run.dir, 4)));
  EXPECT_THAT(lines_,
              ElementsAre(HasSubstr("deletes " + checkpoint::checkpoint_path(config_.run.dir, 2).string())));
  free_is(10);
  EXPECT_NE(refusal(), "");
  room().make_some(log_);
  config_.checkpoint.keep = 1;
  room().make_some(log_);
  EXPECT_EQ(checkpoint::list_checkpoints(config_.run.dir).size(), 1) << "the only one";
  config_.checkpoint.keep = 2, config_.checkpoint.keep_every = 2;
  have(6);
  free_is(10);
  room().make_some(log_);
  EXPECT_EQ(checkpoint::list_checkpoints(config_.run.dir).size(), 2) << "both stay for good";
}

// As a job leaves it that is killed between a save and what is deleted after it.
TEST_F(RoomOfRun, IsMadeByASurplusCheckpointWhereOneIsKept) {
  config_.checkpoint.keep = 1;
  for (const int step : {2, 4}) have(step);
  free_is(10);
  EXPECT_EQ(refusal(), "");
  room().make_some(log_);
  EXPECT_THAT(checkpoint::list_checkpoints(config_.run.dir),
              ElementsAre(checkpoint::checkpoint_path(config_.run.dir, 4)));
}

TEST_F(RoomOfRun, KeepsTheOnlyWholeCheckpointOnceAnotherIsKnownToBeDamaged) {
  config_.checkpoint.keep = 2;
  for (const int step : {2, 4}) have(step);
  free_is(10);
  Room of_run = room();
  of_run.note_checkpoints(
      4, {{checkpoint::checkpoint_path(config_.run.dir, 4), "damaged"}});  // found when it was read
  of_run.make_some(log_);
  EXPECT_EQ(checkpoint::list_checkpoints(config_.run.dir).size(), 2);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(RoomOfRun, DeletesNothingWhereThatIsNotEnough) {
  config_.checkpoint.keep = 2;
  for (const int step : {2, 4}) have(step);
  free_is(-10);
  room().make_some(log_);
  EXPECT_EQ(checkpoint::list_checkpoints(config_.run.dir).size(), 2);
}

TEST_F(RoomOfRun, IsForeseen) {
  free_is(4 * kBytes);
  EXPECT_EQ(room().problem_at_the_end({0, 100, 10}), std::nullopt);  // three and the one that is written
  EXPECT_EQ(room().problem_at_the_end({0, std::int64_t{1} << 62, 1}), std::nullopt);  // without an end
  free_is(4 * kBytes - 1);
  EXPECT_EQ(room().problem_at_the_end({0, 100, 0}), std::nullopt);  // one, at the end
  EXPECT_THAT(room().problem_at_the_end({0, 100, 10}),
              Optional(AllOf(StartsWith("there is no room for all checkpoints of this run: "),
                             HasSubstr("4 new ones of 1000 B"), HasSubstr("need 3.91 KiB"),
                             HasSubstr("3.91 KiB are free in " + config_.run.dir),
                             HasSubstr("checkpoint.keep = 2 would fit"))));
  config_.checkpoint.keep_every = 10;
  EXPECT_THAT(room().problem_at_the_end({0, 100, 10}),
              Optional(HasSubstr("keep fewer (checkpoint.keep_every)")));
}

TEST_F(RoomOfRun, IsForeseenFromOneAnswerOfTheFileSystem) {
  int asked = 0;
  const Room once(config_, kBytes, {}, [&](const fs::path&) {
    return ++asked == 1 ? std::optional<std::int64_t>(kBytes)
                        : std::nullopt;  // as after a failure of statvfs
  });
  EXPECT_THAT(once.problem_at_the_end({0, 100, 10}), Optional(HasSubstr("and 1000 B are free in")));
  EXPECT_EQ(asked, 1);
}

TEST_F(RoomOfRun, IsWatchedWhileItShrinks) {
  Room watched = room();
  double now = 100;
  const auto look = [&](std::int64_t bytes) {
    free_is(bytes);
    return watched.new_problem(now += 20);
  };
  EXPECT_EQ(look(kBytes), std::nullopt);
  EXPECT_THAT(look(kBytes - 1), Optional(AllOf(HasSubstr("it needs 1000 B, and 999 B are free"),
                                               HasSubstr("make room there"))));
  EXPECT_EQ(look(10), std::nullopt) << "said once";
  EXPECT_EQ(look(kBytes), std::nullopt);
  EXPECT_NE(look(10), std::nullopt) << "again";
  free_is(kBytes);
  EXPECT_EQ(watched.new_problem(now + 1), std::nullopt);  // it does not look yet
  EXPECT_EQ(look(10), std::nullopt) << "said before";
}

TEST_F(RoomOfRun, IsEnoughWhereNobodySays) {
  Room unknown(config_, kBytes, {}, [](const fs::path&) { return std::nullopt; });
  EXPECT_FALSE(unknown.problem_of_next());
  EXPECT_EQ(unknown.problem_at_the_end({0, 100, 1}), std::nullopt);
  EXPECT_EQ(unknown.new_problem(100), std::nullopt);
  EXPECT_TRUE(unknown.has_some());
}

TEST_F(RoomOfRun, MayBeElsewhere) {
  EXPECT_EQ(fallback_folder(config_), "");
  config_.checkpoint.fallback_dir = (folder_ / "elsewhere").string();
  EXPECT_EQ(fallback_folder(config_), folder_ / "elsewhere" / fs::canonical(folder_ / "run").relative_path());
  free_is(kBytes);
  EXPECT_EQ(refusal(), "");
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("fallback_dir has no room")));
  EXPECT_TRUE(fs::is_directory(folder_ / "elsewhere"));
  free_is(0);
  EXPECT_FALSE(room().has_some());
  EXPECT_THAT(
      refusal(),
      AllOf(HasSubstr("there is no room for a checkpoint of this model"),
            HasSubstr(
                ". Older checkpoints are deleted only after a new one is completely written; make room")));
  free_elsewhere_ = kBytes;
  EXPECT_TRUE(room().has_some());
  lines_.clear();
  EXPECT_EQ(refusal(), "");
  EXPECT_THAT(lines_, ElementsAre(AllOf(HasSubstr("warning: there is no room for a checkpoint: it needs"),
                                        HasSubstr("they go to " + fallback_folder(config_).string()))));

  for (const int step : {2, 4}) have(step);
  fs::create_directories(fallback_folder(config_) / "checkpoints");
  for (const int step : {3, 4})
    std::ofstream(checkpoint::checkpoint_path(fallback_folder(config_), step)) << "x";
  EXPECT_THAT(run_checkpoints(config_), ElementsAre(checkpoint::checkpoint_path(config_.run.dir, 2),
                                                    checkpoint::checkpoint_path(fallback_folder(config_), 3),
                                                    checkpoint::checkpoint_path(fallback_folder(config_), 4),
                                                    checkpoint::checkpoint_path(config_.run.dir, 4)));
  config_.checkpoint.fallback_dir = "/proc/none";
  EXPECT_THAT(refusal(), HasSubstr("checkpoint.fallback_dir = /proc/none cannot be written"));
  fs::create_symlink("loop", folder_ / "loop");
  config_.run.dir = (folder_ / "loop/run").string();
  EXPECT_THAT(refusal(), HasSubstr("cannot follow the path run.dir = " + config_.run.dir));
}

TEST_F(RoomOfRun, IsJudgedWithoutMakingAFolder) {
  config_.checkpoint.fallback_dir = (folder_ / "new/elsewhere").string();
  free_is(kBytes);
  free_elsewhere_ = kBytes;
  EXPECT_FALSE(room().problem_of_fallback() || room().problem_of_next());
  free_elsewhere_ = kBytes - 1;
  const auto no_fallback = room().problem_of_fallback();
  ASSERT_TRUE(no_fallback);
  EXPECT_FALSE(no_fallback->is_fatal) << "run.dir has room";
  free_is(0);
  const auto nowhere = room().problem_of_next();
  ASSERT_TRUE(nowhere);
  EXPECT_TRUE(nowhere->is_fatal);
  free_elsewhere_ = kBytes;
  const auto elsewhere = room().problem_of_next();
  ASSERT_TRUE(elsewhere);
  EXPECT_FALSE(elsewhere->is_fatal);
  EXPECT_FALSE(fs::exists(folder_ / "new"));

  const std::string file = (folder_ / "file").string();
  std::ofstream(file) << "x";
  for (const std::string& not_writable : {file, file + "/elsewhere"}) {
    config_.checkpoint.fallback_dir = not_writable;
    const auto problem = room().problem_of_fallback();
    ASSERT_TRUE(problem) << not_writable;
    EXPECT_TRUE(problem->is_fatal);
    EXPECT_EQ(problem->text, "checkpoint.fallback_dir = " + not_writable +
                                 " cannot be written: Not a directory; choose another folder");
  }
}

}  // namespace
}  // namespace llampi::test
