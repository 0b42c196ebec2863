// SPDX-License-Identifier: Apache-2.0
// Disks that are full, fill up while a checkpoint is written, or are read-only: real ones, small file systems
// in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cstdlib>
#include <optional>

#include "checkpoint/save.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/error.hpp"
#include "llampi/io/hdf5.hpp"
#include "support/checkpoint_sample.hpp"
#include "support/shared_folder.hpp"

namespace llampi::test {
namespace {

using namespace checkpoint;

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// A file system of some bytes in memory; what mounting needs is not always permitted. Collective, like its
/// end.
class SmallDisk {
 public:
  explicit SmallDisk(std::int64_t bytes) {
    std::int64_t failed = 0;
    on_rank_0([&] {
      failed = ::mount("tmpfs", path().c_str(), "tmpfs", 0, ("size=" + std::to_string(bytes)).c_str()) != 0;
    });
    test_world().max(std::span<std::int64_t>(&failed, 1));
    mounted_ = failed == 0;
  }
  ~SmallDisk() {
    wait_for_all_ranks();
    on_rank_0([&] {
      if (mounted_) ::umount2(path().c_str(), MNT_DETACH);
    });
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return mounted_; }
  const fs::path& path() const { return folder_.path(); }
  void make_read_only() const {
    wait_for_all_ranks();
    on_rank_0(
        [&] { ASSERT_EQ(::mount(nullptr, path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0); });
  }
  /// Leaves about `bytes` free.
  void fill_up_to(std::int64_t bytes) const {
    on_rank_0([&] {
      fs::remove(path() / "filler");
      const auto free = static_cast<std::int64_t>(fs::space(path()).available);
      write_bytes(path() / "filler", std::string(static_cast<std::size_t>(free - bytes), 'x'));
    });
  }

 private:
  SharedFolder folder_;
  bool mounted_ = false;
};

#define MOUNT_OR_SKIP(disk, bytes) \
  const SmallDisk disk(bytes);     \
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs is not permitted here"

constexpr std::int64_t kMiB = 1 << 20;

/// About 2.4 MiB of values with moments, in seven parts.
SamplePieces large_pieces() {
  SamplePieces pieces({{"a", {331, 317}}, {"b", {317, 331}}});
  for (int tensor = 0; tensor < 2; ++tensor) {
    const std::int64_t elements = 331 * 317;
    for (int part = 0; part < 7; ++part) {
      if (part % test_ranks() != test_rank()) continue;
      const std::int64_t begin = elements * part / 7;
      pieces.add(tensor, begin, elements * (part + 1) / 7 - begin);
    }
  }
  return pieces;
}

void save(const fs::path& file, bool check_free_space, const FileSettings& settings = {}) {
  SaveOptions options;
  options.file = settings;
  options.check_free_space = check_free_space;
  const auto pieces = large_pieces().fill();
  save_checkpoint(test_world(), sample_device(), file,
                  {pieces.tensors(), pieces.pieces(), sample_state(), {"{}", ""}}, options);
}

/// That `file` cannot be saved, and that nothing else changes.
void expect_refusal(const fs::path& file, bool check_free_space,
                    const ::testing::Matcher<std::string>& matcher, const FileSettings& settings = {}) {
  const auto bytes = [&] { return fs::exists(file) ? std::optional(read_text(file)) : std::nullopt; };
  const auto old = bytes();
  const auto message = message_of<UserError>([&] { save(file, check_free_space, settings); });
  EXPECT_THAT(message, AllOf(HasSubstr(file.string()), HasSubstr("another place"), matcher));
  wait_for_all_ranks();
  EXPECT_FALSE(fs::exists(file.string() + ".tmp"));
  EXPECT_TRUE(bytes() == old);
  wait_for_all_ranks();
}

TEST(Disk, RefusesBeforeWritingWhatDoesNotFit) {
  MOUNT_OR_SKIP(disk, 4 * kMiB);
  const fs::path file = disk.path() / "step.h5";
  save(file, true);  // fits once
  expect_refusal(disk.path() / "step2.h5", true,
                 AllOf(HasSubstr("it needs 2."), HasSubstr("MiB"), HasSubstr("free")));
  expect_refusal(file, true, HasSubstr("it needs 2."));
}

// From no room at all, over room for the metadata only, to room for nearly everything.
TEST(Disk, ThatFillsUpLeavesTheOldFile) {
  MOUNT_OR_SKIP(disk, 8 * kMiB);
  const fs::path file = disk.path() / "step.h5";
  save(file, true);
  for (const std::int64_t free : {0, 4, 8, 16, 32, 64, 72, 80, 96, 128, 256, 512, 1024, 1500, 2000, 2300}) {
    SCOPED_TRACE(free);
    disk.fill_up_to(free * 1024);
    expect_refusal(file, false, AllOf(HasSubstr("o space left"), HasSubstr("make room there, or")));
  }
  on_rank_0([&] { fs::remove(disk.path() / "filler"); });
  save(file, true);  // and all works again
  const auto pieces = large_pieces();
  load_checkpoint(test_world(), sample_device(), file, pieces.tensors(), pieces.pieces());
  EXPECT_EQ(pieces.differences(), 0);
}

// One rank writes for all, or parallel HDF5 does; with that, a disk that fails only when the file is closed would leave the
// others waiting, but a full one fails where values are written.
TEST(Disk, ThatFillsUpIsToldToAll) {
  MOUNT_OR_SKIP(disk, 8 * kMiB);
  const fs::path file = disk.path() / "step.h5";
  save(file, true);
  std::vector<FileSettings> ways{{.writers_per_node = 1}};
  if (io::hdf5::is_parallel()) ways.push_back({.io = FileIo::hdf5});
  for (const auto& way : ways) {
    for (const std::int64_t free : {0, 64, 512, 2000}) {
      SCOPED_TRACE(free);
      disk.fill_up_to(free * 1024);
      expect_refusal(file, false, AnyOf(HasSubstr("No space left"), HasSubstr("no space left")), way);
    }
    on_rank_0([&] { fs::remove(disk.path() / "filler"); });
    save(file, true, way);
    const auto pieces = large_pieces();
    load_checkpoint(test_world(), sample_device(), file, pieces.tensors(), pieces.pieces());
    EXPECT_EQ(pieces.differences(), 0);
    wait_for_all_ranks();
  }
}

TEST(Disk, ThatIsReadOnlyIsNamed) {
  MOUNT_OR_SKIP(disk, 8 * kMiB);
  const fs::path file = disk.path() / "step.h5";
  save(file, true);
  disk.make_read_only();
  expect_refusal(file, true, AllOf(HasSubstr("ead-only file system"), Not(HasSubstr("make room"))));
  const auto pieces = large_pieces();
  load_checkpoint(test_world(), sample_device(), file, pieces.tensors(), pieces.pieces());
  EXPECT_EQ(pieces.differences(), 0);
}

TEST(Disk, IsNotCalledFullForWordsOfAPath) {
  const SharedFolder folder;
  const fs::path file = folder.path() / ("quota" + std::string(300, 'x') + ".h5");
  const auto message = message_of<UserError>([&] { save(file, true); });
  EXPECT_THAT(message, AllOf(HasSubstr("File name too long"), HasSubstr("another place"),
                             Not(HasSubstr("make room"))));
}

TEST(Disk, IsNotCalledFullWhereTheFolderIsGone) {
  const SharedFolder folder;
  expect_refusal(folder.path() / "none" / "step.h5", true,
                 AllOf(HasSubstr("no such folder"), Not(HasSubstr("make room"))));
}

}  // namespace
}  // namespace llampi::test
