// SPDX-License-Identifier: Apache-2.0
// The program with plugins that it cannot load, and with none: it starts, does what needs no GPU, and says
// why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/shell.hpp"

namespace llampi::test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class Loading : public ::testing::Test {
 protected:
  /// The program's word about GPUs, with its plugin looked for in `plugins`. Fails unless --version and
  /// --help work.
  std::string gpu_line(const std::string& plugins) const {
    const std::string program = "LLAMPI_PLUGIN_DIR='" + plugins + "' " LLAMPI_PROGRAM;
    const Ending version = shell(folder_.path(), program + " --version");
    EXPECT_EQ(version.status, 0);
    EXPECT_EQ(version.err, "");
    for (const char* arguments : {" --help", " train --help", " plan --help"}) {
      const Ending help = shell(folder_.path(), program + arguments);
      EXPECT_EQ(help.status, 0) << arguments;
      EXPECT_EQ(help.err, "") << arguments;
    }
    const std::string key = "\nGPU              ";
    const auto begin = version.out.find(key);
    if (begin == std::string::npos) return "no line in " + version.out;
    return version.out.substr(begin + key.size(), version.out.find('\n', begin + 1) - begin - key.size());
  }
  ScratchFolder folder_;
};

TEST_F(Loading, SaysThatThereIsNoPlugin) {
  EXPECT_EQ(gpu_line(folder_.path().string()), "none: there is no libllampi_cuda.so in " +
                                                   folder_.path().string() +
                                                   " (not installed, or not built: make program)");
}

TEST_F(Loading, FindsItBesideTheProgramOrInLib) {
  // A copy, whose folder and neighbour hold no plugin.
  const auto bin = folder_.path() / "bin", lib = folder_.path() / "lib";
  std::filesystem::create_directories(bin);
  std::filesystem::create_directories(lib);
  std::filesystem::copy_file(LLAMPI_PROGRAM, bin / "llampi");
  const auto versions = [&] {
    return shell(folder_.path(), "env -u LLAMPI_PLUGIN_DIR bin/llampi --version").out;
  };
  EXPECT_THAT(versions(),
              HasSubstr("\nGPU              none: there is no libllampi_cuda.so in " + bin.string() + " or " +
                        lib.string() + " (not installed, or not built: make program)\n"));
  std::filesystem::copy_file(FAKE_PLUGINS "/fake/libllampi_cuda.so", lib / "libllampi_cuda.so");
  EXPECT_THAT(versions(), HasSubstr("\nGPU              a fake\n"));
  std::filesystem::rename(lib / "libllampi_cuda.so", bin / "libllampi_cuda.so");
  EXPECT_THAT(versions(), HasSubstr("\nGPU              a fake\n"));
}

TEST_F(Loading, RefusesWhatIsNoLibrary) {
  folder_.write("libllampi_cuda.so", "This is not a library.\n");
  EXPECT_THAT(
      gpu_line(folder_.path().string()),
      MatchesRegex("none: libllampi_cuda.so cannot be loaded: .*(file too short|invalid ELF header)"));
}

TEST_F(Loading, NamesTheLibrariesThatItNeeds) {
  EXPECT_THAT(gpu_line(FAKE_PLUGINS "/needs"),
              MatchesRegex("none: libllampi_cuda.so cannot be loaded: libllampi_absent.so: cannot open .*"));
}

TEST_F(Loading, RefusesThatOfAnotherProgramOrVersion) {
  EXPECT_EQ(gpu_line(FAKE_PLUGINS "/no_factory"),
            "none: " FAKE_PLUGINS
            "/no_factory/libllampi_cuda.so is not of this program: it has no "
            "llampi_gpu_library");
  EXPECT_EQ(gpu_line(FAKE_PLUGINS "/other_version"),
            "none: " FAKE_PLUGINS
            "/other_version/libllampi_cuda.so is of another version or build than the program");
}

TEST_F(Loading, UsesOneThatWorks) { EXPECT_EQ(gpu_line(FAKE_PLUGINS "/fake"), "a fake"); }

}  // namespace
}  // namespace llampi::test
