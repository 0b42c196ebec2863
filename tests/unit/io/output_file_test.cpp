// SPDX-License-Identifier: Apache-2.0
// What a command's output file replaces, and that it appears whole or not at all.
#include "llampi/io/output_file.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

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

/// As /dev/stdout is, if it is a pipe: a link whose target is no path.
TEST(OutputFile, IsNoPipe) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const TemporaryFolder folder;
  const auto pipe = fmt::format("/proc/self/fd/{}", ends[1]);
  std::filesystem::create_symlink(pipe, folder / "out");
  for (const std::filesystem::path& path : {std::filesystem::path(pipe), folder / "out"}) {
    const auto output = output_at(io::follow_links(path));
    EXPECT_EQ(user_error([&] { output.check(); }),
              path.string() + " is not a regular file: name another output");
  }
  for (const int end : ends) ::close(end);
}

TEST(OutputFile, IsTheTargetOfALink) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("target", folder / "link");
  EXPECT_EQ(io::follow_links(folder / "link"), folder / "target") << "which does not exist";
  write_text(folder / "target", "page");
  EXPECT_EQ(io::follow_links(folder / "link"), folder / "target");
}

}  // namespace
}  // namespace llampi::test
