// SPDX-License-Identifier: Apache-2.0
// A temporary folder that all ranks of a test use.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "llampi/comm/comm.hpp"
#include "support/mpi_test.hpp"
#include "support/temporary_folder.hpp"

namespace llampi::test {

/// Collective, like its end.
class SharedFolder {
 public:
  SharedFolder() {
    if (test_world().rank() == 0) folder_.emplace();
    path_ = test_world().broadcast(folder_ ? folder_->path().string() : "", 0);
  }
  ~SharedFolder() { test_world().barrier(); }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::optional<TemporaryFolder> folder_;
  std::filesystem::path path_;
};

/// Runs `work` on rank 0 only, then lets all go on.
template <class Work>
void on_rank_0(Work&& work) {
  if (test_world().rank() == 0) work();
  test_world().barrier();
}

/// What `work` throws as ErrorType; fails the test if it does not, or if the ranks' messages differ.
/// Collective.
template <class ErrorType, class Work>
std::string message_of(Work&& work) {
  std::string message = "nothing was thrown";
  try {
    work();
  } catch (const ErrorType& error) {
    message = error.what();
  }
  for (const auto& other : test_world().all_gather(message)) EXPECT_EQ(other, message) << "the ranks differ";
  EXPECT_NE(message, "nothing was thrown");
  return message;
}

}  // namespace llampi::test
