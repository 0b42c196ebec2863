// SPDX-License-Identifier: Apache-2.0
#include "health/flight_file.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/files.hpp"
#include "support/read_text.hpp"
#include "support/temporary_folder.hpp"

namespace llampi::test {
namespace {

TEST(FlightFile, IsWrittenAndRemovedWhereThisJobHasTheFolderAlone) {
  const TemporaryFolder folder;
  const auto path = health::flight_file(folder.path(), 3);
  health::FlightRecord record;
  bool holds = false;
  health::FlightFile file(record, folder.path(), {.rank = 3, .ranks = 4, .host = "node", .reason = ""},
                          [&] { return holds; });
  std::filesystem::create_directories(path.parent_path());
  write_text(path, "of another job");
  EXPECT_FALSE(file.write("no progress", 60));
  file.remove();
  EXPECT_EQ(read_text(path), "of another job");
  holds = true;
  EXPECT_TRUE(file.write("no progress", 60));
  const auto written = nlohmann::json::parse(read_text(path));
  EXPECT_EQ(written["reason"], "no progress");
  EXPECT_EQ(written["rank"], 3);
  EXPECT_TRUE(file.write_terminated(60));
  file.remove();
  EXPECT_FALSE(std::filesystem::exists(path.parent_path()));
}

TEST(FlightFile, OfAJobThatIsToldToTerminateReplacesNoneOfAFailure) {
  const TemporaryFolder folder;
  health::FlightRecord record;
  const health::FlightFileHead head = {.rank = 3, .ranks = 4, .host = "node", .reason = ""};
  health::FlightFile(record, folder.path(), head, {}).write("no progress", 60);
  const auto failure = health::flight_file(folder.path(), 3), end = health::terminated_file(folder.path(), 3);
  const auto written = read_text(failure);
  health::FlightFile file(record, folder.path(), head, {});
  EXPECT_TRUE(file.write_terminated(60));
  EXPECT_EQ(nlohmann::json::parse(read_text(end))["reason"], "the process was told to terminate");
  file.remove();
  EXPECT_FALSE(std::filesystem::exists(end));
  EXPECT_EQ(read_text(failure), written);
}

}  // namespace
}  // namespace llampi::test
