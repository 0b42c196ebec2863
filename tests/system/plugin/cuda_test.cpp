// SPDX-License-Identifier: Apache-2.0
// The real plugin, on any machine that has the CUDA libraries: with a GPU or, as most often, without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "llampi/device/device.hpp"
#include "llampi/device/gpu.hpp"
#include "support/shell.hpp"

namespace llampi::test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

const device::GpuLibrary& plugin() {
  setenv("LLAMPI_PLUGIN_DIR", LLAMPI_PLUGIN_FOLDER, 1);
  std::string why;
  const device::GpuLibrary* const library = device::gpu_library(why);
  if (library == nullptr) throw std::runtime_error(why);
  return *library;
}

TEST(CudaPlugin, LiesBesideTheProgramAndTellsItsVersions) {
  const ScratchFolder folder;
  const Ending ending = shell(folder.path(), "env -u LLAMPI_PLUGIN_DIR " LLAMPI_PROGRAM " --version");
  EXPECT_EQ(ending.status, 0);
  EXPECT_EQ(ending.err, "");
  EXPECT_THAT(ending.out, HasSubstr("\nGPU              " + plugin().describe() + "\n"));
  EXPECT_THAT(plugin().describe(),
              MatchesRegex("CUDA [0-9.]+, cuBLASLt [0-9.]+, (cuDNN [0-9.]+|no cuDNN), NCCL [0-9.]+"));
}

TEST(CudaPlugin, NamesItsGpusOrSaysWhyThereAreNone) {
  std::vector<device::GpuProperties> gpus;
  try {
    gpus = plugin().gpus();
  } catch (const Error& error) {  // the driver's words
    EXPECT_THAT(error.what(), MatchesRegex("cudaGetDeviceCount: .+ \\(cudaError[A-Za-z]+\\)"));
    EXPECT_THROW(plugin().make_device({}), Error);
    return;
  }
  ASSERT_FALSE(gpus.empty());
  for (const auto& gpu : gpus) {
    EXPECT_NE(gpu.name, "");
    EXPECT_THAT(gpu.bus_id, MatchesRegex("[0-9a-fA-F]+:[0-9a-fA-F]+:[0-9a-fA-F]+\\.[0-9]"));
    EXPECT_GE(gpu.major, 1);
    EXPECT_GT(gpu.memory_bytes, 0);
  }
}

TEST(CudaPlugin, HasOnlyTheSymbolsThatItShows) {
  EXPECT_NE(plugin().symbol("llampi_gpu_library"), nullptr);
  EXPECT_THROW(plugin().symbol("llampi_no_such_symbol"), Error);
  EXPECT_THROW(plugin().symbol("_ZN6llampi14make_gpu_sizesEv"), Error);  // hidden: the program has its own
}

}  // namespace
}  // namespace llampi::test
