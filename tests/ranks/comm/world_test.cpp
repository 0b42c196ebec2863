// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <thread>

#include "comm/mpi/check.hpp"
#include "comm/mpi/mpi_world.hpp"
#include "llampi/comm/comm.hpp"
#include "support/mpi_test.hpp"
#include "support/rank_values.hpp"

namespace llampi::test {
namespace {

using namespace comm;

TEST(World, DescribesItself) {
  const std::string text = test_world().describe();
  EXPECT_NE(text.find("MPI_THREAD_"), std::string::npos) << text;
  EXPECT_EQ(text.find(" v"), std::string::npos) << text;
}

TEST(World, IsOnePerProcess) { EXPECT_THROW(World::create(), Error); }

TEST(World, SumsInTreeOrder) {
  World& world = test_world();
  std::vector<double> reals = values<double>(world.rank(), 100);
  std::vector<std::int64_t> integers = values<std::int64_t>(world.rank(), 100);
  world.sum(std::span<double>(reals));
  world.sum(std::span<std::int64_t>(integers));
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(reals[static_cast<std::size_t>(i)], tree_sum<double>(first_ranks(world.size()), i));
    EXPECT_EQ(integers[static_cast<std::size_t>(i)], tree_sum<std::int64_t>(first_ranks(world.size()), i));
  }
}

TEST(World, FindsMaxima) {
  World& world = test_world();
  std::array<double, 2> reals = {-1.0 - world.rank(), 0.5 * world.rank()};
  std::array<std::int64_t, 1> integers = {std::int64_t{1} << (40 + world.rank())};
  world.max(std::span<double>(reals));
  world.max(std::span<std::int64_t>(integers));
  EXPECT_EQ(reals[0], -1.0);
  EXPECT_EQ(reals[1], 0.5 * (world.size() - 1));
  EXPECT_EQ(integers[0], std::int64_t{1} << (40 + world.size() - 1));
}

TEST(World, KeepsNaNAndSignsInMaxima) {
  World& world = test_world();
  const double infinity = std::numeric_limits<double>::infinity();
  std::array<double, 4> reals = {-infinity, -1e-300 * (world.rank() + 1),
                                 world.rank() == 0 ? std::nan("") : 5.0,
                                 world.rank() == 0 ? infinity : 1e300};
  world.max(std::span<double>(reals));
  EXPECT_EQ(reals[0], -infinity);
  EXPECT_EQ(reals[1], -1e-300);
  EXPECT_TRUE(std::isnan(reals[2]));
  EXPECT_EQ(reals[3], infinity);
}

// While it is under way other collectives run, and another of its kind.
TEST(World, CombinesIntegersMeanwhile) {
  World& world = test_world();
  const std::int64_t ranks = world.size(), rank = world.rank();
  std::array<std::int64_t, 4> values = {1, -rank, std::int64_t{1} << (40 + rank), -1 - rank};
  std::array<std::int64_t, 2> others = {rank, rank};
  const auto first = world.start_to_combine(values, 2);
  const auto second = world.start_to_combine(others, 2);
  std::int64_t sum = rank;
  world.sum(std::span(&sum, 1));
  EXPECT_EQ(sum, ranks * (ranks - 1) / 2);
  EXPECT_EQ(world.broadcast(std::to_string(rank), static_cast<int>(ranks) - 1), std::to_string(ranks - 1));
  second->wait(device::Stream::host);
  first->wait(device::Stream::host);
  EXPECT_EQ(values, (std::array<std::int64_t, 4>{ranks, -sum, std::int64_t{1} << (40 + ranks - 1), -1}));
  EXPECT_EQ(others, (std::array<std::int64_t, 2>{sum, sum}));
  world.start_to_combine(values, 0);  // nobody wants to know: it is waited for all the same
  const auto nothing = world.start_to_combine({}, 0);
  nothing->wait(device::Stream::host);
  nothing->wait(device::Stream::host);
}

TEST(World, GathersTextsOfANode) {
  World& world = test_world();
  const auto texts =
      world.all_gather_on_node(world.topology().host + std::to_string(world.topology().local_rank));
  ASSERT_EQ(static_cast<int>(texts.size()), world.topology().local_ranks);
  for (std::size_t local = 0; local < texts.size(); ++local)
    EXPECT_EQ(texts[local], world.topology().host + std::to_string(local));
}

TEST(World, BroadcastsTexts) {
  World& world = test_world();
  for (int root = 0; root < world.size(); ++root) {
    for (const std::string& text : {std::string(), std::string("a\0b", 3), std::string(100'000, 'x')}) {
      EXPECT_EQ(world.broadcast(world.rank() == root ? text : "other", root), text);
    }
  }
}

TEST(World, GathersTexts) {
  World& world = test_world();
  const auto texts = world.all_gather(std::string(static_cast<std::size_t>(world.rank() * 1000), 'y'));
  ASSERT_EQ(static_cast<int>(texts.size()), world.size());
  for (int rank = 0; rank < world.size(); ++rank) {
    EXPECT_EQ(texts[static_cast<std::size_t>(rank)], std::string(static_cast<std::size_t>(rank * 1000), 'y'));
  }
  EXPECT_EQ(world.all_gather(""), std::vector<std::string>(static_cast<std::size_t>(world.size())));
  for (int root = 0; root < world.size(); ++root) {
    const std::string own(static_cast<std::size_t>(world.rank() * 1000), 'y');
    EXPECT_EQ(world.gather(own, root), world.rank() == root ? texts : std::vector<std::string>());
  }
}

TEST(World, AllocatesZeroedPages) {
  for (const std::int64_t bytes : {1, 5000, 3 << 20}) {
    const device::Memory memory = test_world().allocate(bytes);
    EXPECT_EQ(memory.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % 4096, 0U);
    EXPECT_TRUE(
        std::all_of(memory.data(), memory.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(World, RefusesGroupsThatCannotBe) {
  World& world = test_world();
  EXPECT_THROW(world.group({}), Error);
  EXPECT_THROW(world.group({world.rank(), world.size()}), Error);
  EXPECT_THROW(world.group({world.rank(), world.rank()}), Error);
  if (world.size() > 1) {
    EXPECT_THROW(world.group({(world.rank() + 1) % world.size()}), Error);
  }
}

TEST(World, SaysFromOutsideThatItWaitsForOtherRanks) {
  World& world = test_world();
  if (world.size() == 1) GTEST_SKIP() << "nobody to wait for";
  const auto other = world.duplicate();
  ASSERT_NE(other, nullptr);
  EXPECT_FALSE(other->waits());
  std::thread thread;
  if (world.rank() > 0) {  // they wait until rank 0 comes
    thread = std::thread([&] { other->barrier(); });
    while (!other->waits()) std::this_thread::yield();
  }
  world.barrier();
  EXPECT_EQ(other->waits(), world.rank() > 0);
  world.barrier();
  if (world.rank() == 0) other->barrier();
  if (thread.joinable()) thread.join();
  EXPECT_FALSE(other->waits());
}

TEST(World, SplitsIntoWorldsThatWaitAsOne) {
  World& world = test_world();
  const auto part = world.split(world.rank() % 2);
  ASSERT_NE(part, nullptr);
  EXPECT_EQ(part->rank(), world.rank() / 2);
  EXPECT_EQ(part->size(), (world.size() + 1 - world.rank() % 2) / 2);
  EXPECT_EQ(part->topology().local_ranks, part->size());
  const auto texts = part->gather(std::to_string(world.rank()), 0);
  EXPECT_EQ(texts.size(), part->rank() == 0 ? static_cast<std::size_t>(part->size()) : 0);
  for (std::size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(texts[i], std::to_string(world.rank() % 2 + 2 * i));
  const auto first = world.split(world.rank() == 0 ? 7 : -1);
  EXPECT_EQ(first != nullptr, world.rank() == 0);

  // What waits in a part of a duplicate waits in the duplicate.
  const auto other = world.duplicate();
  ASSERT_NE(other, nullptr);
  const auto all = other->split(0);
  std::thread thread;
  if (world.rank() > 0) {
    thread = std::thread([&] { all->barrier(); });
    while (!other->waits()) std::this_thread::yield();
  }
  world.barrier();
  if (world.rank() == 0) all->barrier();
  if (thread.joinable()) thread.join();
  EXPECT_FALSE(other->waits());
}

TEST(World, MpiErrorsNameCallAndRank) {
  World& world = test_world();
  const int number = 0;
  try {
    check_mpi(MPI_Send(&number, 1, MPI_INT, world.size(), 0, mpi_communicator(world)), "MPI_Send");
    ADD_FAILURE() << "sent to a rank that does not exist";
  } catch (const CallError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("MPI_Send failed"), std::string::npos) << text;
    EXPECT_NE(text.find("MPI_ERR_RANK"), std::string::npos) << text;
    EXPECT_NE(text.find(fmt::format("on rank {}", world.rank())), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace llampi::test
