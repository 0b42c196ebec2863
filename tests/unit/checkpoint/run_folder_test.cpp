// SPDX-License-Identifier: Apache-2.0
// Names of checkpoints, pruning, and telling kinds of files apart.
#include <hdf5.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llampi/checkpoint/run_folder.hpp"
#include "llampi/core/error.hpp"
#include "llampi/io/hdf5.hpp"
#include "support/checkpoint_sample.hpp"
#include "support/temporary_folder.hpp"

namespace llampi::test {
namespace {

using namespace checkpoint;

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunFolder : public ::testing::Test {
 protected:
  const fs::path& run() const { return folder_.path(); }
  fs::path checkpoints() const { return run() / "checkpoints"; }
  void touch(const std::string& name) const { write_bytes(checkpoints() / name, "x"); }
  std::vector<std::string> listed() const {
    std::vector<std::string> names;
    for (const auto& path : list_checkpoints(run())) names.push_back(path.filename().string());
    return names;
  }
  void SetUp() override { fs::create_directory(checkpoints()); }

 private:
  TemporaryFolder folder_;
};

TEST_F(RunFolder, NamesCheckpointsByStep) {
  EXPECT_EQ(checkpoint_path("runs/a", 100), fs::path("runs/a/checkpoints/step-00000100.h5"));
  EXPECT_EQ(checkpoint_path("runs/a", 1'234'567'890), fs::path("runs/a/checkpoints/step-1234567890.h5"));
}

TEST_F(RunFolder, ListsWholeCheckpointsByStep) {
  for (const char* name : {"step-100000000.h5", "step-00000020.h5", "step-00000003.h5",
                           "step-00000004.h5.tmp", "step-5.h5", "step-000000006.h5", "step-0000000x.h5",
                           "step-00000007.h5.bak", "other.h5", "step-.h5", "step--0000008.h5"}) {
    touch(name);
  }
  fs::create_directory(checkpoints() / "step-00000009.h5");
  EXPECT_THAT(listed(), ElementsAre("step-00000003.h5", "step-00000020.h5", "step-100000000.h5"));
  EXPECT_TRUE(list_checkpoints(run() / "absent").empty());
}

TEST_F(RunFolder, PruningKeepsTheNewest) {
  for (const char* name : {"step-00000001.h5", "step-00000002.h5", "step-00000010.h5", "step-00000002.h5.tmp",
                           "notes.tmp", "mine.h5"}) {
    touch(name);
  }
  prune_checkpoints({run(), 10}, {2});
  EXPECT_THAT(listed(), ElementsAre("step-00000002.h5", "step-00000010.h5"));
  EXPECT_FALSE(fs::exists(checkpoints() / "step-00000002.h5.tmp"));
  EXPECT_TRUE(fs::exists(checkpoints() / "notes.tmp"));
  EXPECT_TRUE(fs::exists(checkpoints() / "mine.h5"));
  prune_checkpoints({run(), 10}, {5});
  EXPECT_THAT(listed(), ElementsAre("step-00000002.h5", "step-00000010.h5"));
  EXPECT_THROW(prune_checkpoints({run(), 10}, {0}), Error);
  EXPECT_NO_THROW(prune_checkpoints({run() / "absent", 10}, {3}));
}

TEST_F(RunFolder, PruningCountsThoseInTheFallbackFolderToo) {
  const TemporaryFolder other;
  fs::create_directory(other / "checkpoints");
  for (const int step : {2, 4, 6, 20}) write_bytes(checkpoint_path(other.path(), step), "x");
  for (const int step : {3, 8, 10}) write_bytes(checkpoint_path(run(), step), "x");
  prune_checkpoints({.run_dir = run(), .step = 10, .fallback = other.path()}, {3});
  EXPECT_THAT(listed(), ElementsAre("step-00000008.h5", "step-00000010.h5"));
  EXPECT_THAT(list_checkpoints(other.path()),
              ElementsAre(checkpoint_path(other.path(), 6), checkpoint_path(other.path(), 20)));
}

TEST_F(RunFolder, PruningDoesNotNeedTheFallbackFolder) {
  const TemporaryFolder other;
  fs::create_symlink("checkpoints", other / "checkpoints");  // to itself: it cannot be read
  for (const int step : {3, 8, 10}) write_bytes(checkpoint_path(run(), step), "x");
  EXPECT_THROW(prune_checkpoints({.run_dir = run(), .step = 10, .fallback = other.path()}, {2}), UserError);
  EXPECT_THAT(listed(), ElementsAre("step-00000008.h5", "step-00000010.h5"));
}

TEST_F(RunFolder, PruningCountsNoDamagedOnes) {
  for (const char* name : {"step-00000001.h5", "step-00000002.h5", "step-00000003.h5", "step-00000004.h5"})
    touch(name);
  prune_checkpoints({run(), 4, {checkpoint_path(run(), 4), checkpoint_path(run(), 1)}}, {1});
  EXPECT_THAT(listed(), ElementsAre("step-00000001.h5", "step-00000003.h5", "step-00000004.h5"));
}

/// A run that went back: what it saves is not surplus because an earlier job got further.
TEST_F(RunFolder, PruningCountsAndDeletesNoneOfLaterSteps) {
  for (const int step : {10, 20, 30, 80, 90, 100}) touch(fmt::format("step-{:08}.h5", step).c_str());
  prune_checkpoints({run(), 30}, {2});
  EXPECT_THAT(listed(), ElementsAre("step-00000020.h5", "step-00000030.h5", "step-00000080.h5",
                                    "step-00000090.h5", "step-00000100.h5"));
}

TEST_F(RunFolder, PruningKeepsEverySoManyth) {
  for (const int step : {0, 5, 10, 15, 20, 25, 30, 35}) touch(fmt::format("step-{:08}.h5", step).c_str());
  prune_checkpoints({run(), 35}, {.newest = 2, .every = 20});
  EXPECT_THAT(listed(),
              ElementsAre("step-00000000.h5", "step-00000020.h5", "step-00000030.h5", "step-00000035.h5"));
  prune_checkpoints({run(), 35, {checkpoint_path(run(), 35)}}, {.newest = 1, .every = 15});
  EXPECT_THAT(listed(), ElementsAre("step-00000000.h5", "step-00000030.h5", "step-00000035.h5"));
}

TEST_F(RunFolder, TellsKindsOfFilesByContent) {
  const auto hdf5_file = [&](const char* name, const char* format, bool tokens) {
    auto file = io::hdf5::create_file(run() / name, io::hdf5::file_access().id());
    if (format != nullptr) io::hdf5::write_string(file.id(), "format", format);
    if (tokens) {
      const io::hdf5::Dataspace space(H5Screate(H5S_SCALAR));
      const io::hdf5::Dataset data(
          H5Dcreate2(file.id(), "tokens", H5T_STD_U8LE, space.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    }
    return run() / name;
  };
  EXPECT_EQ(identify(hdf5_file("a.bin", "llampi-checkpoint", false)), FileKind::checkpoint);
  EXPECT_EQ(identify(hdf5_file("b.bin", "llampi-tokens", true)), FileKind::tokens);
  EXPECT_EQ(identify(hdf5_file("c.bin", nullptr, true)), FileKind::tokens);
  EXPECT_THROW(identify(hdf5_file("d.bin", "something else", true)), UserError);
  EXPECT_THROW(identify(hdf5_file("e.bin", nullptr, false)), UserError);
  EXPECT_THROW(read_checkpoint_summary(run() / "b.bin"), UserError);
  EXPECT_THROW(read_checkpoint_summary(run() / "a.bin"), UserError);  // nothing but the format

  EXPECT_THROW(identify(run()), UserError);
  write_bytes(run() / "config.json", "{}");
  EXPECT_EQ(identify(run()), FileKind::huggingface_folder);
  EXPECT_THROW(identify(run() / "config.json"), UserError);
  EXPECT_THROW(identify(run() / "absent"), UserError);
}

}  // namespace
}  // namespace llampi::test
