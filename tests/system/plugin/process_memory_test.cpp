// SPDX-License-Identifier: Apache-2.0
// What this process has of a GPU, by a driver's library that says what the test wants (fake_nvml.cpp).
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "llampi/device/gpu_process.hpp"

namespace llampi::test {
namespace {

constexpr const char* kGpu = "0000:00:00.0";

std::optional<std::int64_t> bytes_of(const std::string& processes, std::int64_t at_least = 100) {
  setenv("FAKE_NVML", processes.c_str(), 1);
  return device::GpuProcessMemory(kGpu).bytes(1, at_least);
}

TEST(GpuProcessMemory, IsOfThisProcess) {
  EXPECT_EQ(bytes_of("1:5000 self:700 2:6000"), 700);
  std::string many;
  for (int i = 0; i < 200; ++i) many += std::to_string(i + 1) + ":5000 ";
  EXPECT_EQ(bytes_of(many + "self:700"), 700);
}

// In a container the driver may number processes otherwise; a single one can only be this.
TEST(GpuProcessMemory, IsOfTheOnlyProcessThereIs) {
  EXPECT_EQ(bytes_of("1:700"), 700);
  EXPECT_EQ(bytes_of("1:700 2:800"), std::nullopt);
}

TEST(GpuProcessMemory, IsUnknownWhereTheDriverDoesNotSay) {
  EXPECT_EQ(bytes_of(""), std::nullopt);
  EXPECT_EQ(bytes_of("self:18446744073709551615"), std::nullopt);  // not available
  EXPECT_EQ(bytes_of("self:99"), std::nullopt);                    // less than was allocated
  unsetenv("FAKE_NVML");
  EXPECT_EQ(device::GpuProcessMemory(kGpu).bytes(1, 0), std::nullopt);
  setenv("FAKE_NVML", "self:700", 1);
  EXPECT_EQ(device::GpuProcessMemory("0000:17:00.0").bytes(1, 0), std::nullopt);
}

TEST(GpuProcessMemory, IsAskedForAgainWhenTheGpusMemoryHasChanged) {
  setenv("FAKE_NVML", "self:700", 1);
  device::GpuProcessMemory memory(kGpu);
  EXPECT_EQ(memory.bytes(1000, 0), 700);
  setenv("FAKE_NVML", "self:900", 1);
  EXPECT_EQ(memory.bytes(1000, 0), 700);
  EXPECT_EQ(memory.bytes(1200, 0), 900);
}

}  // namespace
}  // namespace llampi::test
