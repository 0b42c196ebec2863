// SPDX-License-Identifier: Apache-2.0
#include "train/growing_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "llampi/core/error.hpp"

namespace llampi::test {
namespace {

// At the beginning of an address space there is nothing: EIO, as of a disk that fails.
TEST(GrowingFile, KeepsWhatADiskRefuses) {
  const std::filesystem::path memory = "/proc/self/mem";
  if (!std::filesystem::exists(memory)) GTEST_SKIP() << memory << " is not there";
  train::GrowingFile file(memory);
  EXPECT_THAT(file.append("one line\n"), ::testing::HasSubstr("Input/output error"));
  EXPECT_NE(file.append("another\n"), "");
  EXPECT_EQ(file.unwritten(), "one line\nanother\n");
  EXPECT_THROW(file.sync(), Error);
}

}  // namespace
}  // namespace llampi::test
