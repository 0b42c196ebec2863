// SPDX-License-Identifier: Apache-2.0
// A temporary folder that all ranks of a test use, and what they do together.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "support/mpi_test.hpp"
#include "support/temporary_folder.hpp"

namespace llampi::test {

/// Collective, like its end.
class SharedFolder {
 public:
  SharedFolder();
  ~SharedFolder();
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::optional<TemporaryFolder> folder_;
  std::filesystem::path path_;
};

/// Runs `work` on rank 0 only, then lets all go on.
void on_rank_0(const std::function<void()>& work);

/// Fails the test if the ranks' messages differ. Collective.
void expect_alike(const std::string& message);

/// What `work` throws as ErrorType; fails the test if it does not, or if the ranks' messages differ.
/// Collective.
template <class ErrorType, class Work>
std::string message_of(Work&& work) {
  const std::string nothing = "nothing was thrown";
  std::string message = nothing;
  try {
    work();
  } catch (const ErrorType& error) {
    message = error.what();
  }
  expect_alike(message);
  EXPECT_NE(message, nothing);
  return message;
}

}  // namespace llampi::test
