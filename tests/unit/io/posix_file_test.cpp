// SPDX-License-Identifier: Apache-2.0
// Reading a whole file, of whichever kind it is.
#include "llampi/io/posix_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <thread>

#include "llampi/core/error.hpp"
#include "llampi/io/temporary_file.hpp"
#include "support/files.hpp"
#include "support/full_disk.hpp"

namespace llampi::test {
namespace {

using ::testing::HasSubstr;

TEST(PosixFile, IsReadWhole) {
  const TemporaryFolder folder;
  for (const auto& text : {std::string(), std::string("a"), std::string(100'000, 'x') + '\0' + "end"}) {
    write_text(folder / "file", text);
    EXPECT_EQ(io::read_whole(folder / "file"), text);
  }
}

// Neither says its size.
TEST(PosixFile, IsReadWholeFromAPipeAndFromProc) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const std::string text(300'000, 'x');
  std::thread writer([&] { write_text(folder / "pipe", text); });
  EXPECT_EQ(io::read_whole(folder / "pipe"), text);
  writer.join();
  EXPECT_THAT(io::read_whole("/proc/self/status"), HasSubstr("Pid:"));
}

TEST(PosixFile, SaysWhyItCannotBeRead) {
  const TemporaryFolder folder;
  EXPECT_EQ(user_error([&] { io::read_whole(folder.path()); }),
            folder.path().string() + " cannot be read: Is a directory");
  EXPECT_EQ(user_error([&] { io::read_whole(folder / "none"); }),
            (folder / "none").string() + " cannot be read: No such file or directory");
  // It can be opened, and reading it at offset 0 fails with EIO, as on a failing disk.
  EXPECT_THROW(io::read_whole("/proc/self/mem"), CallError);
}

TEST(PosixFile, SaysWhyToProgramsToo) {
  const TemporaryFolder folder;
  const auto error_of = [](const std::filesystem::path& path) {
    try {
      io::PosixFile::create(path);
    } catch (const io::FileError& error) {
      return error.error_number();
    }
    return 0;
  };
  EXPECT_EQ(error_of(folder.path()), EISDIR);
  EXPECT_EQ(error_of(folder / "none" / "file"), ENOENT);
  EXPECT_EQ(error_of(folder / std::string(300, 'x')), ENAMETOOLONG);
}

TEST(PosixFile, IsNotCalledMissingWhereNothingIsKnownOfIt) {
  const TemporaryFolder folder;
  write_text(folder / "file", "");
  std::filesystem::create_symlink("loop", folder / "loop");
  using std::filesystem::file_type;
  EXPECT_EQ(io::type_of(folder.path()), file_type::directory);
  EXPECT_EQ(io::type_of(folder / "file"), file_type::regular);
  EXPECT_EQ(io::type_of(folder / "none"), file_type::not_found);
  EXPECT_EQ(io::type_of(folder / "file" / "none"), file_type::not_found);
  EXPECT_EQ(user_error([&] { io::type_of(folder / "loop"); }),
            (folder / "loop").string() + " cannot be read: Too many levels of symbolic links");
}

TEST(PosixFile, SaysThatALinkOnTheWayToAFolderLeadsNowhere) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("none", folder / "link");
  for (const std::string name : {"link", "link/more"})
    EXPECT_EQ(user_error([&] { io::create_folder(folder / name, "; choose another"); }),
              "cannot create the folder " + (folder / name).string() + ": the link " +
                  (folder / "link").string() + " leads to none, which is not there; choose another");
}

TEST(PosixFile, NamesTheOutputAndNotTheTemporaryFile) {
  const auto file = io::temporary_beside("none/a-b.txt");
  EXPECT_EQ(user_error([&] { io::PosixFile::create(file); }),
            "none/a-b.txt cannot be created: No such file or directory");
}

// A file that may not grow stands for a disk that is full.
TEST(PosixFile, KeepsItsContentWhereThereIsNoRoomForAnother) {
  const TemporaryFolder folder;
  write_text(folder / "file", "a line\n");
  const auto file = io::PosixFile::open_for_writing(folder / "file");
  {
    const FullDisk full;
    EXPECT_THAT(user_error([&] { file.replace_content("another line, and a longer one\n"); }),
                HasSubstr("file cannot be written"));
  }
  EXPECT_EQ(io::read_whole(folder / "file"), "a line\n");
  for (const std::string text : {"another line, and a longer one\n", "short\n", ""}) {
    file.replace_content(text);
    EXPECT_EQ(io::read_whole(folder / "file"), text);
  }
}

}  // namespace
}  // namespace llampi::test
