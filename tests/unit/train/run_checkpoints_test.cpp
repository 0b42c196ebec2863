// SPDX-License-Identifier: Apache-2.0
// Where the checkpoints of a run are looked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "llampi/core/error.hpp"
#include "llampi/train/run_checkpoints.hpp"
#include "support/temporary_folder.hpp"
#include "train/history.hpp"

namespace llampi::test {
namespace {

using namespace train;

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunCheckpoints : public ::testing::Test {
 protected:
  RunCheckpoints() {
    fs::create_directories(run_ / "checkpoints");
    append(start_json({.step = 0}, 1));
  }

  void append(const std::string& line) const { HistoryFile(run_ / "history.jsonl").append(line); }
  static fs::path write(const fs::path& file, const std::string& text) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
    return file;
  }
  static fs::path save(const fs::path& folder, int step) {
    return write(checkpoint::checkpoint_path(folder, step), "a checkpoint");
  }
  void note(const fs::path& file) const {
    append(
        checkpoint_json(*checkpoint::checkpoint_step(file), file.string(), CheckpointContent::all, 1, 1e9));
  }
  std::string refusal() const {
    try {
      static_cast<void>(resolve_weights(run_, Log()));
    } catch (const UserError& error) {
      return error.what();
    }
    return "not refused";
  }

  TemporaryFolder folder_;
  fs::path run_ = folder_ / "run";
};

TEST_F(RunCheckpoints, AreFoundInEveryFallbackFolder) {
  const fs::path given = folder_ / "given", noted = folder_ / "noted", before = folder_ / "before";
  const auto own = save(run_, 2);
  const auto in_given = save(fallback_folder(run_, given), 5),
             in_noted = save(fallback_folder(run_, noted), 4);
  const auto of_job_before = save(before, 3);
  write(run_ / "config.ini", "[checkpoint]\nfallback_dir = " + noted.string() + "\n");
  note("checkpoints/step-00000002.h5");
  note(of_job_before);
  note(in_noted);
  EXPECT_THAT(run_checkpoints(run_), ElementsAre(own, of_job_before, in_noted));
  EXPECT_THAT(run_checkpoints(run_, given), ElementsAre(own, of_job_before, in_noted, in_given));
  EXPECT_THAT(run_checkpoints(run_, noted), ElementsAre(own, of_job_before, in_noted));
  EXPECT_THAT(fallback_folders(run_, noted), ElementsAre(fallback_folder(run_, noted)));
  append(start_json({.step = 0}, 2));
  EXPECT_THAT(run_checkpoints(run_, given), ElementsAre(own, in_noted, in_given))
      << "those before are another run's";
}

TEST_F(RunCheckpoints, AreMissedOnlyWhereTheNewestIsGone) {
  EXPECT_THAT(refusal(), HasSubstr("has not saved a checkpoint yet"));
  const auto file = checkpoint::checkpoint_path(folder_ / "elsewhere", 8);
  note(file);
  const std::string gone = file.string() + " of step 8 (saved 2001-09-09T01:46:40Z)";
  ASSERT_TRUE(vanished_checkpoint(run_));
  EXPECT_EQ(vanished_checkpoint(run_)->text, gone);
  EXPECT_EQ(refusal(), "the newest checkpoint of the run in " + run_.string() + ", " + gone +
                           ", is gone, and no other one is left");
  save(folder_ / "elsewhere", 8);
  EXPECT_FALSE(vanished_checkpoint(run_));
  EXPECT_THAT(refusal(), AllOf(HasSubstr(run_.string() + " has no checkpoint that can be read"),
                               HasSubstr(file.string())));
}

}  // namespace
}  // namespace llampi::test
