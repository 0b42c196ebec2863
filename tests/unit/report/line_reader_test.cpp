// SPDX-License-Identifier: Apache-2.0
#include "report/line_reader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "llampi/core/error.hpp"
#include "support/files.hpp"

namespace llampi::test {
namespace {

using namespace report;

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LineReading : public ::testing::Test {
 protected:
  void append(const std::string& text) const { std::ofstream(file(), std::ios::app) << text; }
  void replace(const std::string& text) const {
    write_text(folder_ / "new", text);
    fs::rename(folder_ / "new", file());
  }
  fs::path file() const { return folder_ / "lines"; }
  /// What has come; "restart" where it is of another file.
  std::vector<std::string> read() {
    std::vector<std::string> lines;
    reader_.read([&] { lines.emplace_back("restart"); },
                 [&](std::string_view line) { lines.emplace_back(line); });
    return lines;
  }

  TemporaryFolder folder_;
  LineReader reader_{file(), 16};
};

TEST_F(LineReading, GoesOnWhereItWas) {
  append("one\n\ntwo and more\nthr");
  EXPECT_THAT(read(), ElementsAre("one", "", "two and more"));
  EXPECT_THAT(read(), IsEmpty());
  append("ee\n");
  EXPECT_THAT(read(), ElementsAre("three"));
  append("a line longer than a piece, which has 16 bytes\nfour\n");
  EXPECT_THAT(read(), ElementsAre("a line longer th", "an a piece, whic", "h has 16 bytes", "four"));
}

// A file system may give the number of a file that was replaced to the next one but one.
TEST_F(LineReading, BeginsAgainInAFileThatWasReplacedOrCutBack) {
  append("one\ntwo\nthree\n");
  EXPECT_THAT(read(), ElementsAre("one", "two", "three"));
  write_text(file(), "one\nTWO\nthree\nfour\n");  // as long, and the same file
  EXPECT_THAT(read(), ElementsAre("restart", "one", "TWO", "three", "four"));
  write_text(file(), "one\n");
  EXPECT_THAT(read(), ElementsAre("restart", "one"));
  replace("one\ntwo\n");  // as it was, and longer
  EXPECT_THAT(read(), ElementsAre("two"));
  write_text(file(), "");
  EXPECT_THAT(read(), ElementsAre("restart"));
}

TEST_F(LineReading, AFileThatCannotBeReadForAWhileChangesNothing) {
  append("one\n");
  EXPECT_THAT(read(), ElementsAre("one"));
  fs::rename(file(), folder_ / "away");
  EXPECT_THROW(read(), Error);
  fs::create_directory(file());
  EXPECT_THROW(read(), Error);
  fs::remove(file());
  fs::rename(folder_ / "away", file());
  append("two\n");
  EXPECT_THAT(read(), ElementsAre("two"));
}

}  // namespace
}  // namespace llampi::test
