// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/available_memory.hpp"

#include <gtest/gtest.h>

namespace llampi::test {
namespace {

using namespace fsdp;

constexpr ArenaBytes kArenas = {1000, 10};  // of the device, of the host
const EngineOptions kOptions = [] {
  EngineOptions options;
  options.graph = true;
  return options;
}();
const DeviceMesh kMesh = make_device_mesh(Strategy::full_shard, {0, 0}, 0);

TEST(AvailableMemory, HoldsAnythingWhereItIsNotKnown) {
  for (const auto backend : {comm::Backend::mpi, comm::Backend::nccl})
    EXPECT_TRUE((AvailableMemory{.backend = backend}.holds(kArenas, kMesh, kOptions)));
}

TEST(AvailableMemory, OfARankOnCpusHoldsBothArenasAndTheProcess) {
  AvailableMemory memory{.one_memory = true,
                         .on_device = 1010 + 7,
                         .on_host = 0,
                         .ranks_on_host = 2,
                         .process_on_device = 7,
                         .process_on_host = 7};
  EXPECT_EQ(memory.needed_on_device(kArenas, kMesh, kOptions), memory.on_device);
  EXPECT_EQ(memory.needed_on_host(kArenas), 0);
  EXPECT_TRUE(memory.holds(kArenas, kMesh, kOptions));
  memory.on_device = 1010 + 6;
  EXPECT_FALSE(memory.holds(kArenas, kMesh, kOptions));
}

TEST(AvailableMemory, OfANodeWithGpusHoldsTheHostArenasOfItsRanks) {
  const std::int64_t host_bytes = 3 * (10 + 7);
  AvailableMemory memory{.backend = comm::Backend::nccl,
                         .on_host = host_bytes,
                         .ranks_on_host = 3,
                         .process_on_device = 50,
                         .process_on_host = 7};
  EXPECT_EQ(memory.needed_on_host(kArenas), host_bytes);
  EXPECT_TRUE(memory.holds(kArenas, kMesh, kOptions)) << "the device is not known";
  const std::int64_t device_bytes = memory.needed_on_device(kArenas, kMesh, kOptions);
  EXPECT_GT(device_bytes, 1000 + 50 + loaded_later_bytes(comm::Backend::nccl)) << "communicators count too";
  memory.on_device = device_bytes;
  EXPECT_TRUE(memory.holds(kArenas, kMesh, kOptions));
  memory.on_host = host_bytes - 1;
  EXPECT_FALSE(memory.holds(kArenas, kMesh, kOptions));
  memory.on_host = host_bytes;
  memory.on_device = device_bytes - 1;
  EXPECT_FALSE(memory.holds(kArenas, kMesh, kOptions));
}

// What a running process has measured is what it has left.
TEST(AvailableMemory, OfARunningProcessHoldsItsArenas) {
  AvailableMemory memory{.on_device = 1000, .on_host = 10};
  EXPECT_TRUE(memory.holds(kArenas, kMesh, kOptions));
  memory.on_host = 9;
  EXPECT_FALSE(memory.holds(kArenas, kMesh, kOptions));
  memory = {.one_memory = true, .on_device = 1009, .on_host = 1009};
  EXPECT_FALSE(memory.holds(kArenas, kMesh, kOptions));
}

}  // namespace
}  // namespace llampi::test
