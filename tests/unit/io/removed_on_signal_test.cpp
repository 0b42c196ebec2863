// SPDX-License-Identifier: Apache-2.0
#include "llampi/io/removed_on_signal.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>

#include "support/temporary_folder.hpp"

namespace llampi::test {
namespace {

namespace fs = std::filesystem;

/// How a process ends that does this; in which no test goes on.
int status_of(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

TEST(RemovedOnSignal, RemovesTheFilesAndEndsAsTheSignalDoes) {
  const TemporaryFolder folder;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    for (const char* name : {"a", "b", "mine"}) std::ofstream(folder / name) << name;
    const int status = status_of([&] {
      ::signal(number, SIG_DFL);
      const io::RemovedOnSignal removed({folder / "a", folder / "not there", folder / "b"});
      ::raise(number);
    });
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), number);
    EXPECT_FALSE(fs::exists(folder / "a"));
    EXPECT_FALSE(fs::exists(folder / "b"));
    EXPECT_TRUE(fs::exists(folder / "mine"));
  }
}

TEST(RemovedOnSignal, LeavesIgnoredSignalsAndWhatIsDoneAlone) {
  const TemporaryFolder folder;
  std::ofstream(folder / "a") << "a";
  const int ignored = status_of([&] {
    ::signal(SIGHUP, SIG_IGN);  // as under nohup
    const io::RemovedOnSignal removed({folder / "a"});
    ::raise(SIGHUP);
  });
  EXPECT_TRUE(WIFEXITED(ignored));
  const int done = status_of([&] {
    ::signal(SIGTERM, SIG_DFL);
    { const io::RemovedOnSignal removed({folder / "a"}); }
    ::raise(SIGTERM);
  });
  EXPECT_TRUE(WIFSIGNALED(done));
  EXPECT_TRUE(fs::exists(folder / "a"));
}

}  // namespace
}  // namespace llampi::test
