// SPDX-License-Identifier: Apache-2.0
// Which rank has which GPU, and what is refused. GPUs are only named here: none is needed.
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/nccl_factory.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"
#include "llampi/comm/nccl.hpp"
#include "llampi/comm/workspace.hpp"
#include "llampi/device/device.hpp"
#include "llampi/device/gpu.hpp"
#include "support/mpi_test.hpp"

namespace llampi::test {
namespace {

using namespace comm;

std::vector<device::GpuProperties> gpus(int count, int first = 0) {
  std::vector<device::GpuProperties> result;
  for (int i = 0; i < count; ++i)
    result.push_back({.name = "Some GPU", .bus_id = fmt::format("0000:{:02x}:00.0", first + i)});
  return result;
}

/// What every rank is told, which must be one thing.
std::string refusal(World& world, const std::vector<device::GpuProperties>& visible, bool share) {
  std::string text = "nothing";
  try {
    gpu_of_rank(world, visible, share);
  } catch (const UserError& error) {
    text = error.what();
  }
  for (const std::string& other : world.all_gather(text)) EXPECT_EQ(other, text);
  return text;
}

TEST(GpuOfRank, IsTheRankWithinTheNode) {
  World& world = test_world();
  const Topology& topology = world.topology();
  EXPECT_EQ(gpu_of_rank(world, gpus(topology.local_ranks), false).index, topology.local_rank);
  EXPECT_EQ(gpu_of_rank(world, gpus(topology.local_ranks + 1), false).index, topology.local_rank);
  EXPECT_EQ(gpu_of_rank(world, gpus(3), true).index, topology.local_rank % 3);
}

TEST(GpuOfRank, OneOwnGpuForEachRankIsFine) {
  // As batch systems may arrange it: each rank sees one GPU, which is another one.
  World& world = test_world();
  const GpuOfRank own = gpu_of_rank(world, gpus(1, world.rank()), false);
  EXPECT_EQ(own.index, 0);
  EXPECT_EQ(own.ranks, 1);  // whose memory is its own, however many ranks there are on the node
}

// As Slurm binds GPUs to sockets, over which it spreads ranks in turns: even ranks see the first half of the GPUs, odd ones the
// second.
TEST(GpuOfRank, RanksOfTwoSocketsHaveTheGpusOfTheirs) {
  World& world = test_world();
  const int half = (world.size() + 1) / 2, rank = world.rank();
  const GpuOfRank own = gpu_of_rank(world, gpus(half, half * (rank % 2)), false);
  EXPECT_EQ(own.index, rank / 2);
  EXPECT_EQ(own.ranks, 1);
}

// Each rank sees the GPU of its neighbour too.
TEST(GpuOfRank, TakesOneThatNoOtherHas) {
  World& world = test_world();
  if (world.topology().nodes > 1) GTEST_SKIP() << "needs ranks on one node";
  const int first = std::max(0, world.rank() - 1);
  EXPECT_EQ(gpu_of_rank(world, gpus(world.rank() - first + 1, first), false).index, world.rank() > 0 ? 1 : 0);
}

TEST(GpuOfRank, CountsTheRanksThatHaveIt) {
  World& world = test_world();
  const Topology& topology = world.topology();
  const int ranks = topology.local_ranks, rank = topology.local_rank;
  EXPECT_EQ(gpu_of_rank(world, gpus(ranks), false).ranks, 1);
  EXPECT_EQ(gpu_of_rank(world, gpus(1), true).ranks, ranks);
  // Two ranks on each GPU, whether a rank sees all of them or its own alone; the last may have one to itself.
  const int all = (ranks + 1) / 2;
  EXPECT_EQ(gpu_of_rank(world, gpus(all), true).ranks, rank % all + all < ranks ? 2 : 1);
  EXPECT_EQ(gpu_of_rank(world, gpus(1, rank / 2), true).ranks, (rank ^ 1) < ranks ? 2 : 1);
}

// The instances of one GPU have its bus id, and memory and names of their own.
TEST(GpuOfRank, InstancesOfADividedGpuAreGpus) {
  World& world = test_world();
  auto instance = gpus(1);
  instance[0].uuid = fmt::format("5f21c3d0{:024x}", world.rank());
  const GpuOfRank own = gpu_of_rank(world, instance, false);
  EXPECT_EQ(own.ranks, 1);
  instance[0].uuid = fmt::format("5f21c3d0{:024x}", 7);
  EXPECT_EQ(gpu_of_rank(world, instance, true).ranks, world.topology().local_ranks);
}

TEST(GpuOfRank, SharingIsRefusedUnlessAskedFor) {
  World& world = test_world();
  if (world.topology().local_ranks == 1) GTEST_SKIP() << "needs ranks on one node";
  const std::string text = refusal(world, gpus(1), false);
  EXPECT_NE(text.find("would share GPU 0000:00:00.0"), std::string::npos) << text;
  EXPECT_NE(text.find("ranks 0 and 1 on " + world.topology().host), std::string::npos) << text;
  EXPECT_NE(text.find("share_gpu = true"), std::string::npos) << text;
  EXPECT_EQ(refusal(world, gpus(1), true), "nothing");
}

// As a batch system may give them: 3 of one node and 1 of another.
TEST(GpuOfRank, DifferentNumbersOfGpusAreFine) {
  World& world = test_world();
  const bool last = world.rank() == world.size() - 1;
  EXPECT_EQ(gpu_of_rank(world, gpus(last ? 15 : 16), false).index, world.topology().local_rank);
}

// A fault of the node, not of the user.
TEST(GpuOfRank, ANodeThatHasLostAGpuIsNamed) {
  World& world = test_world();
  if (world.topology().local_ranks < 3) GTEST_SKIP() << "needs ranks that share a GPU";
  const int last = world.size() - 1;
  try {
    gpu_of_rank(world, gpus(world.rank() == last ? last : 16), false);  // so that it takes that of rank 0
    ADD_FAILURE() << "rank " << last << " has a GPU of its own";
  } catch (const CommonError& error) {
    EXPECT_NE(std::string(error.what())
                  .find(fmt::format("rank {} on {} sees {} GPUs, and rank 0 on ", last, world.topology().host,
                                    last)),
              std::string::npos)
        << error.what();
  }
}

TEST(GpuTable, HasALineForEachRank) {
  World& world = test_world();
  const std::string table = gpu_table(world, gpus(16), world.rank() % 16);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), world.size());
  EXPECT_EQ(world.broadcast(table, 0), table);
  const std::string line = table.substr(table.rfind('\n') + 1);
  for (const std::string& part :
       {std::to_string(world.size() - 1), fmt::format("0000:{:02x}:00.0", world.size() - 1),
        world.all_gather(world.topology().host).back(), std::string("Some GPU")})
    EXPECT_NE(line.find(part), std::string::npos) << table;
}

// ---- the way to the plugin ----

struct Asked {
  World* mpi = nullptr;
  device::Device* gpu = nullptr;
  NcclOptions options;
};
Asked& asked() {
  static Asked last;
  return last;
}
void make_nothing(World& mpi, device::Device& gpu, const NcclOptions& options,
                  std::unique_ptr<World>& result) {
  asked() = {&mpi, &gpu, options};
  result.reset();
}
static_assert(std::is_same_v<decltype(make_nothing), NcclWorldFactory>);

class Library final : public device::GpuLibrary {
 public:
  std::string describe() const override { return {}; }
  std::vector<device::GpuProperties> gpus() const override { return {}; }
  std::unique_ptr<device::Device> make_device(const device::GpuOptions&) const override { return {}; }
  void* symbol(const char* name) const override {
    if (std::string(name) != "llampi_make_nccl_world") throw Error("there is none");
    return reinterpret_cast<void*>(&make_nothing);
  }
};

TEST(NcclWorld, ComesFromThePlugin) {
  const auto device = device::make_reference_device();
  EXPECT_EQ(make_nccl_world(test_world(), *device, Library(),
                            {.patience = std::chrono::seconds(7), .reduction = Reduction::nccl}),
            nullptr);
  EXPECT_EQ(asked().mpi, &test_world());
  EXPECT_EQ(asked().gpu, device.get());
  EXPECT_EQ(asked().options.patience, std::chrono::seconds(7));
  EXPECT_EQ(asked().options.reduction, Reduction::nccl);
}

TEST(Workspace, NcclNeedsNone) {
  EXPECT_EQ(reduce_scatter_workspace(Backend::nccl, 1000, 4, DType::float32, Reduction::nccl), 0);
  EXPECT_EQ(all_reduce_workspace(Backend::nccl, 1000, 4, DType::bfloat16, Reduction::nccl), 0);
  for (const DType dtype : {DType::int32, DType::int64, DType::float64}) {
    EXPECT_EQ(reduce_scatter_workspace(Backend::nccl, 1000, 4, dtype), 0);
    EXPECT_EQ(all_reduce_workspace(Backend::nccl, 1000, 4, dtype), 0);
  }
}

TEST(Workspace, OfPartsThatGpusExchangeIsBounded) {
  EXPECT_EQ(reduce_scatter_workspace(Backend::nccl, 1000, 1, DType::float32), 0);
  EXPECT_EQ(reduce_scatter_workspace(Backend::nccl, 1024, 4, DType::float32), 3 * 256 * 4);
  EXPECT_EQ(reduce_scatter_workspace(Backend::nccl, 1004, 4, DType::bfloat16),
            3 * 256 * 2);  // rows of 16 bytes
  EXPECT_EQ(all_reduce_workspace(Backend::nccl, 1000, 1, DType::float32), 0);
  EXPECT_EQ(all_reduce_workspace(Backend::nccl, 10, 4, DType::float32), 4 * 10 * 4);  // small: whole
  EXPECT_EQ(all_reduce_workspace(Backend::nccl, 8000, 4, DType::float32), 3 * 2000 * 4);
  EXPECT_EQ(all_reduce_workspace(Backend::nccl, 8000, 4, DType::bfloat16), 3 * 2000 * 2 + 8000 * 4);
  constexpr std::int64_t kMany = 8 * kExchangeBytes / 4;
  for (const int ranks : {2, 3, 8, 1000}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      EXPECT_LE(reduce_scatter_workspace(Backend::nccl, kMany / ranks * ranks, ranks, dtype), kExchangeBytes);
      EXPECT_GT(reduce_scatter_workspace(Backend::nccl, kMany / ranks * ranks, ranks, dtype),
                kExchangeBytes / 2);
      EXPECT_LE(all_reduce_workspace(Backend::nccl, kMany, ranks, dtype), kExchangeBytes);
      EXPECT_GT(all_reduce_workspace(Backend::nccl, kMany, ranks, dtype), kExchangeBytes / 2);
    }
  }
}

/// However large a unit is: else a reduction of many ranks would be as many messages as bytes.
TEST(Workspace, IsEnoughForSixteenPieces) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 36;
  for (const int ranks : {2, 3, 8, 2048}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      const std::int64_t whole = kHuge / ranks * ranks;
      EXPECT_LE(reduce_scatter_pieces(Backend::nccl, whole, ranks, dtype, Reduction::tree), 16) << ranks;
      EXPECT_GE(reduce_scatter_pieces(Backend::nccl, whole, ranks, dtype, Reduction::tree), 15) << ranks;
      EXPECT_LE(reduce_scatter_workspace(Backend::nccl, whole, ranks, dtype), whole * size_of(dtype) / 15);
      EXPECT_LE(all_reduce_pieces(Backend::nccl, whole, ranks, dtype, Reduction::tree), 16) << ranks;
      EXPECT_GE(all_reduce_pieces(Backend::nccl, whole, ranks, dtype, Reduction::tree), 15) << ranks;
    }
  }
  EXPECT_EQ(reduce_scatter_pieces(Backend::nccl, kHuge, 8, DType::float32, Reduction::nccl), 1);
  EXPECT_EQ(reduce_scatter_pieces(Backend::mpi, kHuge, 8, DType::float32, Reduction::tree), 1);
}

TEST(Workspace, IsThatOfMpiUnlessSaidOtherwise) {
  EXPECT_EQ(reduce_scatter_workspace(Backend::mpi, 1000, 4, DType::float32),
            reduce_scatter_workspace(1000, 4, DType::float32));
  EXPECT_EQ(reduce_scatter_workspace(1000, 4, DType::float32), 4000);
  EXPECT_EQ(test_world().backend(), Backend::mpi);
}

}  // namespace
}  // namespace llampi::test
