// SPDX-License-Identifier: Apache-2.0
// Which temporary files of other processes are removed.
#include "llampi/io/temporary_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/files.hpp"

namespace llampi::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// A process that has made a temporary file next to `path`, or a folder with files, and waits to be killed.
pid_t writer_of(const std::filesystem::path& path, const std::vector<std::string>& files = {}) {
  int done[2];
  if (pipe(done) != 0) throw std::runtime_error("pipe");
  const pid_t child = fork();
  if (child == 0) {
    const auto temporary = io::temporary_beside(path);
    if (files.empty()) write_text(temporary, "half");
    for (const auto& name : files) {
      std::filesystem::create_directories((temporary / name).parent_path());
      write_text(temporary / name, "half");
    }
    close(done[1]);
    for (;;) pause();
  }
  close(done[1]);
  char byte = 0;
  static_cast<void>(read(done[0], &byte, 1));  // ends when the child has closed it
  close(done[0]);
  return child;
}

TEST(TemporaryFiles, AreRemovedOnceTheirProcessIsDead) {
  const TemporaryFolder folder;
  const auto file = folder / "metrics.jsonl";
  const pid_t writer = writer_of(file);
  io::clear_leftovers(file, {});
  EXPECT_EQ(names_in(folder.path()).size(), 1U) << "it may still be written";
  kill(writer, SIGKILL);
  siginfo_t ended{};
  waitid(P_PID, static_cast<id_t>(writer), &ended, WEXITED | WNOWAIT);  // it is a zombie now
  io::clear_leftovers(file, {});
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
  waitpid(writer, nullptr, 0);
}

TEST(TemporaryFiles, OfAFolderTheEntryThatIsKeptStays) {
  const TemporaryFolder folder;
  const auto clear_what_is_left = [&](const std::vector<std::string>& files) {
    const pid_t writer = writer_of(folder / "check", files);
    kill(writer, SIGKILL);
    waitpid(writer, nullptr, 0);
    io::clear_leftovers(folder / "check", {}, "flight");
  };
  clear_what_is_left({"checkpoints/step-1.h5", "checkpoints/step-1.h5.half"});
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
  clear_what_is_left({"checkpoints/step-1.h5", "flight/rank-00001.json"});
  ASSERT_EQ(names_in(folder.path()).size(), 1U);
  EXPECT_THAT(names_in(folder / names_in(folder.path()).front()), ElementsAre("flight"));
}

}  // namespace
}  // namespace llampi::test
