// SPDX-License-Identifier: Apache-2.0
// What is in a folder, and the nearest one that there is.
#include "llampi/io/folders.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/files.hpp"

namespace llampi::test {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(Folders, ListWhatIsInThem) {
  const TemporaryFolder folder;
  write_text(folder / "file", "");
  std::filesystem::create_directory(folder / "folder");
  write_text(folder / "folder" / "deeper", "");
  std::error_code error;
  EXPECT_THAT(io::entries_of(folder.path(), error), UnorderedElementsAre(folder / "file", folder / "folder"));
  EXPECT_FALSE(error);
  EXPECT_THAT(io::entries_of(folder / "none", error), IsEmpty());
  EXPECT_EQ(error, std::errc::no_such_file_or_directory);
  EXPECT_THAT(io::entries_of(folder / "file", error), IsEmpty());
  EXPECT_EQ(error, std::errc::not_a_directory);
}

TEST(Folders, HaveANearestOneThatThereIs) {
  const TemporaryFolder folder;
  write_text(folder / "file", "");
  EXPECT_EQ(io::nearest_existing(folder.path()), folder.path());
  EXPECT_EQ(io::nearest_existing(folder / "none" / "deeper"), folder.path());
  EXPECT_EQ(io::nearest_existing(folder / "file" / "none"), folder / "file");
  EXPECT_EQ(io::nearest_existing("/none/deeper"), "/");
  EXPECT_EQ(io::nearest_existing("none-of-this-name/deeper"), std::filesystem::current_path());
}

TEST(Folders, TellHowAModelOfTheHubIsDownloaded) {
  EXPECT_THAT(io::hub_advice("meta-llama/Llama-3.2-1B"), ::testing::HasSubstr("hf download NAME"));
  for (const char* path :
       {"model", "nofolder/", "nofolder/step.h5", "nofolder/tokenizer.json", "/a/b", "a/b/c", "/tmp/none"})
    EXPECT_EQ(io::hub_advice(path), "") << path;
}

}  // namespace
}  // namespace llampi::test
