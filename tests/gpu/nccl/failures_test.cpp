// SPDX-License-Identifier: Apache-2.0
// What goes wrong, as only emulated communicators can make it: lost ranks, calls that fail, never end, or
// leave memory unaligned.
#include <chrono>
#include <cstdlib>

#include "comm/nccl/nccl_world.hpp"
#include "device/cuda/cuda_device.hpp"
#include "emulator/control.hpp"
#include "emulator/seams/communicators.hpp"
#include "emulator/streams.hpp"
#include "gpu/nccl/nccl_fixture.hpp"
#include "llampi/comm/comm.hpp"
#include "support/streams.hpp"

namespace llampi::test {
namespace {

constexpr std::int64_t kElements = 1000;

class NcclFailures : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = emulator::communicator_counts();
    make_world(std::chrono::seconds(30));
    emulator::set_stream_order(emulator::StreamOrder::lazy);
  }
  void TearDown() override {
    emulator::reset_communicators();
    emulator::set_stream_order(emulator::StreamOrder::eager);
    world.reset();
    EXPECT_EQ(emulator::communicator_counts().open, before_.open);
    EXPECT_EQ(emulator::communicator_counts().memory, before_.memory);
  }

  void make_world(std::chrono::milliseconds patience, const comm::NcclResources& resources = {}) {
    world = std::make_unique<comm::nccl::NcclWorld>(
        mpi, comm::nccl::Gpu{gpu, gpu},
        comm::NcclOptions{.patience = patience, .reduction = comm::Reduction::nccl, .resources = resources});
  }
  int aborted() const { return emulator::communicator_counts().aborted - before_.aborted; }
  int destroyed() const { return emulator::communicator_counts().destroyed - before_.destroyed; }

  Buffer values() {
    Buffer buffer(gpu, *world, DType::float32, kElements);
    buffer.set(numbers(mpi.rank(), kElements));
    return buffer;
  }
  static std::unique_ptr<comm::Work> reduce(comm::Group& group, const Buffer& buffer) {
    return group.all_reduce(buffer.view(), buffer.view(), comm::ReduceOp::sum, Accumulate::no, Tensor(),
                            kReduce);
  }

  comm::World& mpi = test_world();
  device::cuda::CudaDevice gpu{device::GpuOptions{}};
  std::unique_ptr<comm::World> world;
  std::vector<int> all = [this] {
    std::vector<int> ranks;
    for (int rank = 0; rank < mpi.size(); ++rank) ranks.push_back(rank);
    return ranks;
  }();
  const std::vector<device::Stream> streams = {kUnshard, kReduce};

 private:
  emulator::CommunicatorCounts before_;
};

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// Where, who, and the words of NCCL.
void expect_names(const std::string& message, const comm::World& mpi, const std::vector<std::string>& parts) {
  const std::string who = fmt::format("seen by rank {} on {}", mpi.rank(), mpi.topology().host);
  EXPECT_NE(message.find(who), std::string::npos) << message;
  EXPECT_NE(message.find("the group of ranks 0, 1"), std::string::npos) << message;
  for (const auto& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
}

TEST_F(NcclFailures, CommunicatorsAreGivenBackInOrder) {
  {
    const auto group = world->group(all, streams);
    EXPECT_EQ(emulator::communicator_counts().open, 2);
    const Buffer buffer = values();
    reduce(*group, buffer)->wait(device::Stream::compute);
  }
  EXPECT_EQ(destroyed(), 2);
  EXPECT_EQ(aborted(), 0);
}

TEST_F(NcclFailures, AStreamThatWaitsIsEnough) {
  const auto group = world->group(all, streams);
  const Buffer buffer = values();
  reduce(*group, buffer)->wait(device::Stream::compute);  // and the work is destroyed
  EXPECT_FALSE(emulator::is_empty(gpu.stream(kReduce))) << "the host waited";
  EXPECT_EQ(buffer.get()[17], sum_over(all, 17));
}

TEST_F(NcclFailures, ALateCallOfNcclIsStillInItsPlaceOfTheStream) {
  emulator::set_delay(100);
  const auto group = world->group(all, streams);
  const Buffer buffer = values(), copy = values();
  reduce(*group, buffer)->wait(device::Stream::compute);
  gpu.run(device::op::Copy{.source = buffer.view(), .destination = copy.view()});
  EXPECT_EQ(copy.get()[17], sum_over(all, 17));
}

TEST_F(NcclFailures, ACallThatFailsNamesItself) {
  const auto group = world->group(all, streams), other = world->group(all, streams);
  const Buffer buffer = values();
  emulator::fail_next(emulator::Call::issue);
  const std::string message = error_of([&] { reduce(*group, buffer); });
  expect_names(message, mpi,
               {"all_reduce of 1000 float32 on stream reduce", "an emulated error", "emulated words"});
  EXPECT_EQ(aborted(), 4);  // all there are
  const std::string again = error_of([&] { reduce(*other, buffer); });
  EXPECT_NE(again.find(message), std::string::npos) << again;
  EXPECT_NE(error_of([&] { world->check(); }).find(message), std::string::npos);
}

TEST_F(NcclFailures, ACommunicatorThatCannotBeMade) {
  emulator::fail_next(emulator::Call::connect);
  expect_names(error_of([&] { world->group(all, streams); }), mpi, {"the communicator of urgent stream 0"});
  EXPECT_EQ(aborted(), 1);
}

// The one that others are split from is given back last, which the emulated library checks.
TEST_F(NcclFailures, CommunicatorsThatShareAreSplitFromTheFirst) {
  for (const bool chained : {true, false}) {
    const emulator::CommunicatorCounts before = emulator::communicator_counts();
    make_world(std::chrono::seconds(30), {.split_share = true});
    const auto group = world->group(all);
    EXPECT_EQ(emulator::communicator_counts().open, 3);
    EXPECT_EQ(emulator::communicator_counts().split, before.split + 2);
    emulator::chain_collectives(chained);
    const Buffer shard = values(), sums = values(),
                 whole(gpu, *world, DType::float32, kElements * mpi.size());
    const auto gathered = group->all_gather(shard.view(), whole.view(), kUnshard);
    const auto reduced = reduce(*group, sums);
    gathered->wait(device::Stream::compute);
    reduced->wait(device::Stream::compute);
    EXPECT_EQ(sums.get()[17], sum_over(all, 17));
    EXPECT_EQ(whole.get()[kElements + 17], number(1, 17));
  }
  EXPECT_EQ(aborted(), 0);
  EXPECT_EQ(destroyed(), 6);
}

TEST_F(NcclFailures, ASplitThatFailsOrNeverEndsIsGivenUp) {
  for (const bool fails : {true, false}) {
    make_world(std::chrono::seconds(fails ? 30 : 1), {.split_share = true});
    fails ? emulator::fail_next(emulator::Call::split) : emulator::stall_next(emulator::Call::split);
    expect_names(
        error_of([&] { world->group(all, streams); }), mpi,
        {"the communicator of urgent stream 1", fails ? "an emulated error" : "did not answer for 1 s"});
  }
  EXPECT_EQ(aborted(), 4) << "the first and what was to be split from it";
}

TEST_F(NcclFailures, ALostRankEndsTheWait) {
  const auto group = world->group(all, streams);
  const Buffer buffer = values(), more = values();
  for (const bool host : {false, true}) {
    const auto work = reduce(*group, buffer);
    if (!host) {
      work->wait(device::Stream::host);
      continue;
    }
    emulator::lose_a_rank();
    expect_names(error_of([&] { work->wait(device::Stream::host); }), mpi,
                 {"all_reduce of 1000 float32 on stream reduce", "remote process exited"});
  }
  EXPECT_EQ(aborted(), 2);
}

TEST_F(NcclFailures, ALostRankIsSeenByTheWorld) {
  const auto group = world->group(all, streams);
  const Buffer buffer = values();
  reduce(*group, buffer)->wait(device::Stream::compute);
  EXPECT_NO_THROW(world->check());
  emulator::lose_a_rank();
  expect_names(error_of([&] { world->check(); }), mpi, {"remote process exited"});
  EXPECT_EQ(aborted(), 2);
}

TEST_F(NcclFailures, NcclThatDoesNotAnswerIsGivenUp) {
  make_world(std::chrono::seconds(1));
  const auto group = world->group(all, streams);
  const Buffer buffer = values();
  emulator::set_delay(-1);
  const auto begin = std::chrono::steady_clock::now();
  expect_names(error_of([&] { reduce(*group, buffer); }), mpi, {"did not answer for 1 s"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(aborted(), 2);
}

TEST_F(NcclFailures, RanksThatConnectInAnotherOrderAreGivenUp) {
  make_world(std::chrono::seconds(1));
  const auto group = world->group(all, streams);
  const Buffer shard = values(), whole(gpu, *world, DType::float32, kElements * mpi.size());
  const bool gathers = mpi.rank() > 0;
  const std::string message = error_of([&] {
    if (gathers) group->all_gather(shard.view(), whole.view(), kUnshard);
    if (!gathers) reduce(*group, shard);
  });
  expect_names(message, mpi,
               {gathers ? "all_gather of 1000 float32 on stream unshard of the group"
                        : "all_reduce of 1000 float32 on stream reduce of the group",
                "did not answer for 1 s"});
  EXPECT_EQ(aborted(), 2);
}

TEST_F(NcclFailures, CollectivesAreOnTheirOwnStreams) {
  const auto group = world->group(all, streams);
  const Buffer buffer = values();
  EXPECT_NE(error_of([&] {
              group->all_reduce(buffer.view(), buffer.view(), comm::ReduceOp::sum, Accumulate::no, Tensor(),
                                device::Stream::compute);
            }).find("on urgent streams"),
            std::string::npos);
  EXPECT_EQ(aborted(), 0);
}

TEST_F(NcclFailures, NobodyIsWaitedForWhileAnExceptionUnwinds) {
  // No other rank takes part in the end of the communicator: it is aborted.
  try {
    const auto group = world->group(all, streams);
    const Buffer buffer = values();
    const auto work = reduce(*group, buffer);
    work->wait(device::Stream::compute);
    throw std::runtime_error("on purpose");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(aborted(), 2);
  EXPECT_EQ(destroyed(), 0);
}

TEST_F(NcclFailures, OtherMemoryWhereNcclHasNone) {
  for (const bool misaligned : {false, true}) {
    make_world(std::chrono::seconds(30));
    emulator::misalign_memory(misaligned);
    if (!misaligned) emulator::fail_next(emulator::Call::allocate);
    const device::Memory memory = world->allocate(10'000);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % 4096, 0U);
    EXPECT_NE(world->describe().find("buffers by cudaMalloc"), std::string::npos) << world->describe();
    emulator::reset_communicators();
  }
}

TEST_F(NcclFailures, RanksOnOneGpuAreNodesOfTheirOwnToNccl) {
  // Emulated GPUs all have one bus id.
  const char* const host = std::getenv("NCCL_HOSTID");
  ASSERT_NE(host, nullptr);
  const auto hosts = mpi.all_gather(host);
  EXPECT_NE(hosts[0], hosts[1]);
  EXPECT_STREQ(std::getenv("NCCL_NET"), "Socket");
  EXPECT_STREQ(std::getenv("NCCL_MNNVL_ENABLE"), "0");
  if (mpi.topology().nodes == 1) {
    EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "lo");
  }
  EXPECT_NE(world->describe().find("ranks share a GPU"), std::string::npos) << world->describe();
}

TEST_F(NcclFailures, CommunicatorsOfOneGpuStartInOneOrder) {
  EXPECT_STREQ(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT"), "1");
}

// Of each communicator that there is when memory is allocated; gone before the memory is.
TEST_F(NcclFailures, WindowsAreOpenAsLongAsTheMemory) {
  world = std::make_unique<comm::nccl::NcclWorld>(
      mpi, comm::nccl::Gpu{gpu, gpu},
      comm::NcclOptions{.patience = std::chrono::seconds(30), .resources = {.max_ctas = 4, .window = true}});
  const Buffer before = values();
  const auto group = world->group(all, streams);
  EXPECT_EQ(emulator::communicator_counts().windows, 0);
  {
    const Buffer buffer = values(), room(gpu, *world, DType::float32, kElements * mpi.size());
    EXPECT_EQ(emulator::communicator_counts().windows, 2 * emulator::communicator_counts().open);
    group->all_reduce(buffer.view(), buffer.view(), comm::ReduceOp::sum, Accumulate::no, room.view(), kReduce)
        ->wait(device::Stream::compute);
    EXPECT_EQ(buffer.get()[17], sum_over(all, 17));
  }
  EXPECT_EQ(emulator::communicator_counts().windows, 0);
  EXPECT_EQ(emulator::communicator_counts().most_ctas, 4);
}

TEST_F(NcclFailures, AllRanksKnowThatWindowsAreMissing) {
  for (const bool on_one_rank : {true, false}) {
    world = std::make_unique<comm::nccl::NcclWorld>(
        mpi, comm::nccl::Gpu{gpu, gpu},
        comm::NcclOptions{.patience = std::chrono::seconds(30),
                          .resources = {.max_ctas = 4, .window = true}});
    const auto group = world->group(all, streams);
    EXPECT_EQ(world->describe().find("windows"), std::string::npos) << world->describe();
    if (on_one_rank && mpi.rank() == 1) emulator::fail_next(emulator::Call::allocate);
    if (!on_one_rank) emulator::have_no_use_for_windows(mpi.rank() == 1);
    const device::Memory memory = world->allocate(10'000);
    const std::string expected = on_one_rank ? "without windows: NCCL has no memory for them"
                                             : "without all windows: NCCL has no use for some";
    EXPECT_NE(world->describe().find(expected), std::string::npos) << world->describe();
    emulator::have_no_use_for_windows(false);
  }
}

TEST_F(NcclFailures, AGroupOfOneMakesNoCommunicator) {
  const auto group = world->group({mpi.rank()});
  const Buffer buffer = values();
  reduce(*group, buffer)->wait(device::Stream::host);
  EXPECT_EQ(buffer.get()[17], number(mpi.rank(), 17));
  EXPECT_EQ(emulator::communicator_counts().open, 0);
}

}  // namespace
}  // namespace llampi::test
