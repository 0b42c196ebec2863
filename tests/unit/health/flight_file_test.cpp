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
  EXPECT_FALSE(file.write("no progress"));
  file.remove();
  EXPECT_EQ(read_text(path), "of another job");
  holds = true;
  EXPECT_TRUE(file.write("no progress"));
  const auto written = nlohmann::json::parse(read_text(path));
  EXPECT_EQ(written["reason"], "no progress");
  EXPECT_EQ(written["rank"], 3);
  file.remove();
  EXPECT_FALSE(std::filesystem::exists(path.parent_path()));
}

}  // namespace
}  // namespace llampi::test
