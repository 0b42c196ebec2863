// SPDX-License-Identifier: Apache-2.0
// Collectives in flight at once: order within a stream, independence between streams, and nobody waits for
// ever.
#include <gtest/gtest.h>

#include <utility>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/workspace.hpp"
#include "support/mpi_test.hpp"
#include "support/rank_values.hpp"
#include "support/streams.hpp"

namespace llampi::test {
namespace {

using namespace comm;

constexpr std::int64_t kStreamElements = 30'011;

/// An all-reduce with its buffers.
struct Reduction {
  std::vector<double> numbers;
  std::vector<std::int64_t> storage;
  std::unique_ptr<Work> work;

  void issue(Group& group, const World& world, std::uint64_t salt, device::Stream stream) {
    numbers = values<double>(world.rank(), kStreamElements, salt);
    const Tensor workspace =
        workspace_row(storage, all_reduce_workspace(kStreamElements, group.size(), DType::float64));
    work = group.all_reduce(row(numbers), row(numbers), ReduceOp::sum, Accumulate::no, workspace, stream);
  }

  void expect(const Group& group, std::uint64_t salt) const {
    for (std::int64_t i = 0; i < kStreamElements; ++i) {
      ASSERT_EQ(numbers[static_cast<std::size_t>(i)], tree_sum<double>(group.members(), i, salt)) << i;
    }
  }
};

class Streams : public ::testing::Test {
 protected:
  World& world = test_world();
  std::unique_ptr<Group> group = world.group(first_ranks(world.size()));
  bool odd = world.rank() % 2 == 1;
};

TEST_F(Streams, RunInOrder) {
  // Each collective reads what the one before wrote.
  const std::int64_t elements = 1000;
  std::vector<float> whole = values<float>(world.rank(), elements * world.size());
  std::vector<float> shard(static_cast<std::size_t>(elements));
  std::vector<float> sums(whole.size());
  std::vector<float> twice(whole.size());
  std::vector<std::int64_t> storage[2];
  const Tensor first = workspace_row(
      storage[0], reduce_scatter_workspace(elements * world.size(), world.size(), DType::float32));
  const Tensor second =
      workspace_row(storage[1], all_reduce_workspace(elements * world.size(), world.size(), DType::float32));
  const auto scatter = group->reduce_scatter(row(whole), row(shard), Accumulate::no, first, test::kReduce);
  const auto gather = group->all_gather(row(shard), row(sums), test::kReduce);
  const auto reduce =
      group->all_reduce(row(sums), row(twice), ReduceOp::sum, Accumulate::no, second, test::kReduce);
  reduce->wait(device::Stream::compute);
  EXPECT_TRUE(scatter->progress());
  EXPECT_TRUE(gather->progress());
  for (std::int64_t i = 0; i < elements * world.size(); ++i) {
    const float sum = tree_sum<float>(group->members(), i);
    const float expected = tree_sum(std::vector<float>(static_cast<std::size_t>(world.size()), sum));
    ASSERT_EQ(twice[static_cast<std::size_t>(i)], expected) << i;
  }
}

// Whoever waits on the host's own stream has the result then, also of what was issued there.
TEST_F(Streams, OfTheHostAreWaitedForToo) {
  const auto of_host = world.group(first_ranks(world.size()), {device::Stream::host});
  std::vector<float> own = {static_cast<float>(world.rank() + 1)};
  std::vector<float> all(static_cast<std::size_t>(world.size()));
  const auto work = of_host->all_gather({own.data(), DType::float32, 1, 1},
                                        {all.data(), DType::float32, 1, world.size()}, device::Stream::host);
  work->wait(device::Stream::host);
  for (int rank = 0; rank < world.size(); ++rank) EXPECT_EQ(all[static_cast<std::size_t>(rank)], rank + 1);
}

TEST_F(Streams, OverlapInAnyOrder) {
  // Ranks agree on the order within a stream only: odd ranks issue and wait the other way round.
  std::vector<float> shard = values<float>(world.rank(), kStreamElements);
  std::vector<float> whole(static_cast<std::size_t>(kStreamElements * world.size()));
  std::unique_ptr<Work> gather;
  Reduction reduction;
  if (odd) reduction.issue(*group, world, 1, test::kReduce);
  gather = group->all_gather(row(shard), row(whole), test::kUnshard);
  if (!odd) reduction.issue(*group, world, 1, test::kReduce);
  for (Work* work : odd ? std::array{gather.get(), reduction.work.get()}
                        : std::array{reduction.work.get(), gather.get()}) {
    work->wait(device::Stream::compute);
  }
  reduction.expect(*group, 1);
  for (int rank = 0; rank < world.size(); ++rank) {
    ASSERT_EQ(whole[static_cast<std::size_t>(rank * kStreamElements + 17)], value<float>(rank, 17));
  }
}

// What one stream writes another sums up. Hosts do not wait: where one did, the others would never come.
TEST_F(Streams, MayWaitForEachOther) {
  constexpr device::Stream kThird = device::Stream::urgent(2, "third");
  const std::int64_t elements = kStreamElements;
  std::vector<double> numbers = values<double>(world.rank(), elements);
  std::vector<double> sums(numbers.size()), twice(numbers.size());
  std::vector<std::int64_t> storage[2];
  const auto room = [&](int i) {
    return workspace_row(storage[i], all_reduce_workspace(elements, world.size(), DType::float64));
  };
  const Tensor rooms[2] = {room(0), room(1)};
  if (odd) world.barrier();
  const auto first =
      group->all_reduce(row(numbers), row(sums), ReduceOp::sum, Accumulate::no, rooms[0], test::kReduce);
  first->wait(kThird);
  const auto second =
      group->all_reduce(row(sums), row(twice), ReduceOp::sum, Accumulate::no, rooms[1], kThird);
  if (!odd) {
    EXPECT_EQ(second->progress(), world.size() == 1);
    world.barrier();
  }
  second->wait(device::Stream::compute);
  EXPECT_TRUE(first->progress());
  for (std::int64_t i = 0; i < elements; ++i) {
    const double sum = tree_sum<double>(group->members(), i);
    const double expected = tree_sum(std::vector<double>(static_cast<std::size_t>(world.size()), sum));
    ASSERT_EQ(twice[static_cast<std::size_t>(i)], expected) << i;
  }
}

TEST_F(Streams, AreThoseThatAGroupIsMadeFor) {
  const auto few = world.group(first_ranks(world.size()), {test::kReduce});
  std::vector<float> shard(1), whole(static_cast<std::size_t>(world.size()));
  few->all_gather(row(shard), row(whole), test::kReduce)->wait(device::Stream::host);
  if (world.size() == 1) return;
  EXPECT_THROW(few->all_gather(row(shard), row(whole), test::kUnshard), Error);
}

TEST_F(Streams, WaitingForOneMovesTheOthers) {
  // Three all-reduces queued on each of two streams; even ranks wait for one stream first, odd ranks for the
  // other. The second halves of the collectives start only if whoever waits moves everything on.
  std::vector<Reduction> left(3);
  std::vector<Reduction> right(3);
  for (std::uint64_t i = 0; i < 3; ++i) {
    left[i].issue(*group, world, i, test::kReduce);
    right[i].issue(*group, world, 10 + i, test::kUnshard);
  }
  for (Reduction& reduction : odd ? right : left) reduction.work->wait(device::Stream::compute);
  world.barrier();
  for (Reduction& reduction : odd ? left : right) reduction.work->wait(device::Stream::compute);
  for (std::uint64_t i = 0; i < 3; ++i) {
    left[i].expect(*group, i);
    right[i].expect(*group, 10 + i);
  }
}

TEST_F(Streams, SmallCollectivesOfTheWorldMoveTheOthers) {
  // Odd ranks go to the barrier while even ranks wait for the all-reduce before they do.
  Reduction reduction;
  reduction.issue(*group, world, 5, test::kReduce);
  if (!odd) reduction.work->wait(device::Stream::compute);
  world.barrier();
  reduction.work->wait(device::Stream::compute);
  reduction.expect(*group, 5);
}

TEST_F(Streams, ProgressAloneCompletes) {
  Reduction reduction;
  reduction.issue(*group, world, 6, test::kReduce);
  while (!reduction.work->progress()) {
  }
  reduction.expect(*group, 6);
}

TEST_F(Streams, DestroyingAWorkWaits) {
  Reduction first;
  Reduction second;
  first.issue(*group, world, 7, test::kReduce);
  second.issue(*group, world, 8, test::kReduce);
  second.work.reset();
  first.expect(*group, 7);
  second.expect(*group, 8);
}

TEST_F(Streams, AWorkMayOutliveItsGroup) {
  Reduction first;
  Reduction second;
  first.issue(*group, world, 9, test::kReduce);
  second.issue(*group, world, 10, test::kReduce);
  group.reset();
  second.work->wait(device::Stream::compute);
  group = world.group(first_ranks(world.size()));
  first.expect(*group, 9);
  second.expect(*group, 10);
}

}  // namespace
}  // namespace llampi::test
