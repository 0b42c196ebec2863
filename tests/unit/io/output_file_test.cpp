// SPDX-License-Identifier: Apache-2.0
// What a command's output file replaces, and that it appears whole or not at all.
#include "llampi/io/output_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/files.hpp"

namespace llampi::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

io::OutputFile output_at(const std::filesystem::path& path) {
  return {.path = path, .kind = "a page", .is_own = [](const auto& file) {
            return read_text(file).starts_with("page");
          }};
}

TEST(OutputFile, IsWrittenWhole) {
  const TemporaryFolder folder;
  const std::string text = "page" + std::string(100'000, 'x');
  output_at(folder / "new").write(text);
  EXPECT_EQ(read_text(folder / "new"), text);
  output_at(folder / "new").write("page two");
  EXPECT_EQ(read_text(folder / "new"), "page two");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("new")) << "and no temporary file";
}

TEST(OutputFile, ReplacesNoFileOfAnotherKind) {
  const TemporaryFolder folder;
  write_text(folder / "mine", "a letter");
  auto output = output_at(folder / "mine");
  EXPECT_THAT(user_error([&] { output.write("page"); }), HasSubstr("already exists and is not a page"));
  EXPECT_EQ(read_text(folder / "mine"), "a letter");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("mine")) << "and no temporary file";
  output.overwrite = true;
  output.write("page");
  EXPECT_EQ(read_text(folder / "mine"), "page");
}

TEST(OutputFile, NeedsItsFolder) {
  const TemporaryFolder folder;
  auto output = output_at(folder / "none/new");
  EXPECT_EQ(user_error([&] { output.check(); }), output.path.string() + ": there is no folder " +
                                                     (folder / "none").string() +
                                                     "; create it, or name another file");
  EXPECT_THAT(user_error([&] { output.write("page"); }), HasSubstr("none/new"));
  output.makes_folder = true;  // by whoever writes it
  EXPECT_NO_THROW(output.check());
}

}  // namespace
}  // namespace llampi::test
