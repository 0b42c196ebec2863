// SPDX-License-Identifier: Apache-2.0
#include "llampi/plan/planned_memory.hpp"

#include <gtest/gtest.h>

#include "llampi/fsdp/fit_decisions.hpp"

namespace llampi::test {
namespace {

using namespace plan;

constexpr fsdp::ArenaBytes kArenas = {1000, 10};  // of the device, of the host
constexpr auto kReduction = comm::Reduction::tree;
const fsdp::DeviceMesh kMesh = fsdp::make_device_mesh(fsdp::Strategy::full_shard, {0, 0}, 0);

TEST(PlannedMemory, HoldsAnythingWhereItIsNotKnown) {
  for (const auto backend : {comm::Backend::mpi, comm::Backend::nccl})
    EXPECT_TRUE((PlannedMemory{.backend = backend}.holds(kArenas, kMesh, kReduction)));
}

TEST(PlannedMemory, OfARankOnCpusHoldsBothArenasAndTheProcess) {
  PlannedMemory memory{.device_bytes = 1010 + kProcessBytes, .ranks_per_node = 2};
  EXPECT_EQ(memory.needed_on_device(kArenas, kMesh, kReduction), memory.device_bytes);
  EXPECT_EQ(memory.needed_on_host(kArenas), 0);
  EXPECT_TRUE(memory.holds(kArenas, kMesh, kReduction));
  --memory.device_bytes;
  EXPECT_FALSE(memory.holds(kArenas, kMesh, kReduction));
}

TEST(PlannedMemory, OfANodeWithGpusHoldsTheHostArenasOfItsRanks) {
  PlannedMemory memory{
      .backend = comm::Backend::nccl, .host_bytes = 3 * (10 + kProcessBytes), .ranks_per_node = 3};
  EXPECT_EQ(memory.needed_on_host(kArenas), memory.host_bytes);
  EXPECT_TRUE(memory.holds(kArenas, kMesh, kReduction)) << "the device is not known";
  memory.device_bytes = memory.needed_on_device(kArenas, kMesh, kReduction);
  EXPECT_GT(memory.device_bytes, 1000 + kContextBytes) << "what is loaded later counts too";
  EXPECT_TRUE(memory.holds(kArenas, kMesh, kReduction));
  --memory.host_bytes;
  EXPECT_FALSE(memory.holds(kArenas, kMesh, kReduction));
  ++memory.host_bytes;
  --memory.device_bytes;
  EXPECT_FALSE(memory.holds(kArenas, kMesh, kReduction));
}

}  // namespace
}  // namespace llampi::test
