// SPDX-License-Identifier: Apache-2.0
// Collectives and the streams that they are on: nothing but streams and events keeps the order.
#include <algorithm>
#include <array>
#include <utility>

#include "gpu/nccl/nccl_fixture.hpp"
#include "llampi/comm/comm.hpp"
#include "support/streams.hpp"

namespace llampi::test {
namespace {

constexpr std::int64_t kElements = 3001;

class NcclOrder : public NcclTest, public ::testing::WithParamInterface<comm::Reduction> {
 protected:
  comm::NcclOptions options() const override {
    auto options = NcclTest::options();
    options.reduction = GetParam();
    options.exchange_bytes = 4096;  // so that there are several pieces
    return options;
  }
  template <class Body>
  void for_all_orders(Body body) {
    for (const auto& order : compared_orders()) {
      SCOPED_TRACE(order.name);
      order.set();
      body();
    }
  }
  Buffer empty(std::int64_t elements) { return {device(), world(), DType::float32, elements}; }
  Buffer own(std::int64_t elements, int salt = 0) {
    Buffer buffer = empty(elements);
    buffer.set(numbers(mpi.rank(), elements, salt));
    return buffer;
  }
  Buffer reduce_room(const comm::Group& group, std::int64_t elements) {
    return NcclTest::reduce_room(group, elements, DType::float32);
  }
  Buffer scatter_room(const comm::Group& group, std::int64_t whole_elements) {
    return NcclTest::scatter_room(group, whole_elements, DType::float32);
  }
};
INSTANTIATE_TEST_SUITE_P(Of, NcclOrder, ::testing::Values(comm::Reduction::tree, comm::Reduction::nccl),
                         [](const auto& reduction) { return std::string(word_of(reduction.param)); });

TEST_P(NcclOrder, StartsAfterItsStreamAndEndsBeforeWhoeverWaits) {
  // Uploaded on one stream, summed on another, copied on a third, downloaded on a fourth.
  const auto group = group_of_all();
  for_all_orders([&] {
    const Buffer values = empty(kElements), copy = empty(kElements), room = reduce_room(*group, kElements);
    const device::Memory host = device().allocate_host(kElements * 4);
    for (std::int64_t i = 0; i < kElements; ++i)
      reinterpret_cast<float*>(host.data())[i] = static_cast<float>(number(mpi.rank(), i));
    device().upload(values.view(), host.data(), kCopy);
    device().wait(kReduce, device().record(kCopy));
    const auto work = group->all_reduce(values.view(), values.view(), comm::ReduceOp::sum, Accumulate::no,
                                        room.view(), kReduce);
    work->wait(device::Stream::compute);
    device().run(device::op::Copy{.source = values.view(), .destination = copy.view()});
    device().wait(kCopyOut, device().record(device::Stream::compute));
    const auto result = copy.get(kCopyOut);
    for (std::int64_t i = 0; i < kElements; ++i)
      ASSERT_EQ(result[static_cast<std::size_t>(i)], sum_over(all, i)) << i;
    EXPECT_TRUE(work->progress());
  });
}

TEST_P(NcclOrder, OneAfterAnotherOnOneStream) {
  // Each reads what the one before wrote, of which one adds by a kernel of ours.
  const auto group = group_of_all();
  for_all_orders([&] {
    const Buffer whole = own(kElements * mpi.size()), sums = empty(kElements * mpi.size()),
                 twice = empty(kElements * mpi.size()),
                 scatter_workspace = scatter_room(*group, kElements * mpi.size()),
                 reduce_workspace = reduce_room(*group, kElements * mpi.size());
    Buffer shard = empty(kElements);
    shard.set(std::vector<double>(kElements, 5));
    const auto scatter =
        group->reduce_scatter(whole.view(), shard.view(), Accumulate::yes, scatter_workspace.view(), kReduce);
    const auto gather = group->all_gather(shard.view(), sums.view(), kReduce);
    const auto reduce = group->all_reduce(sums.view(), twice.view(), comm::ReduceOp::sum, Accumulate::no,
                                          reduce_workspace.view(), kReduce);
    reduce->wait(device::Stream::host);
    EXPECT_TRUE(scatter->progress());
    EXPECT_TRUE(gather->progress());
    const auto result = twice.get();
    for (std::int64_t i = 0; i < kElements * mpi.size(); ++i)
      ASSERT_EQ(result[static_cast<std::size_t>(i)], mpi.size() * (5 + sum_over(all, i))) << i;
  });
}

TEST_P(NcclOrder, GathersAndReductionsSideBySide) {
  const auto group = group_of_all();
  for_all_orders([&] {
    const Buffer room = scatter_room(*group, kElements * mpi.size());  // of all: they are on one stream
    std::vector<Buffer> shards, wholes, values, totals;
    std::vector<std::unique_ptr<comm::Work>> works;
    for (int i = 0; i < 4; ++i) {
      shards.push_back(own(kElements, i));
      wholes.push_back(empty(kElements * mpi.size()));
      values.push_back(own(kElements * mpi.size(), 10 + i));
      totals.push_back(empty(kElements));
      works.push_back(group->all_gather(shards.back().view(), wholes.back().view(), kUnshard));
      works.push_back(group->reduce_scatter(values.back().view(), totals.back().view(), Accumulate::no,
                                            room.view(), kReduce));
    }
    if (mpi.rank() % 2 == 1) std::reverse(works.begin(), works.end());
    for (const auto& work : works) work->wait(device::Stream::compute);
    for (int i = 0; i < 4; ++i) {
      const auto whole = wholes[static_cast<std::size_t>(i)].get(),
                 total = totals[static_cast<std::size_t>(i)].get();
      for (std::int64_t k = 0; k < kElements; ++k) {
        for (int rank = 0; rank < mpi.size(); ++rank)
          ASSERT_EQ(whole[static_cast<std::size_t>(rank * kElements + k)], number(rank, k, i));
        ASSERT_EQ(total[static_cast<std::size_t>(k)], sum_over(all, mpi.rank() * kElements + k, 10 + i));
      }
    }
  });
}

TEST_P(NcclOrder, ShardsAndReplicas) {
  // A reduction over the row, then over the column of a matrix of ranks, as hybrid sharding does.
  const int rows = mpi.size() % 2 == 0 ? 2 : 1, columns = mpi.size() / rows;
  std::vector<int> row, column;
  for (int i = 0; i < columns; ++i) row.push_back(mpi.rank() / columns * columns + i);
  for (int i = 0; i < rows; ++i) column.push_back(i * columns + mpi.rank() % columns);
  const auto shards = world().group(row), replicas = world().group(column);
  for_all_orders([&] {
    const Buffer whole = own(kElements * columns), shard = empty(kElements),
                 scatter_workspace = scatter_room(*shards, kElements * columns),
                 reduce_workspace = reduce_room(*replicas, kElements);
    Buffer sums = empty(kElements);
    sums.set(std::vector<double>(kElements, 1));
    shards->reduce_scatter(whole.view(), shard.view(), Accumulate::no, scatter_workspace.view(), kReduce)
        ->wait(device::Stream::compute);
    replicas
        ->all_reduce(shard.view(), sums.view(), comm::ReduceOp::sum, Accumulate::yes, reduce_workspace.view(),
                     kReduce)
        ->wait(device::Stream::compute);
    const auto result = sums.get();
    for (std::int64_t i = 0; i < kElements; ++i)
      ASSERT_EQ(result[static_cast<std::size_t>(i)], 1 + sum_over(all, shards->rank() * kElements + i)) << i;
  });
}

TEST_P(NcclOrder, AWorkThatNobodyWaitedForIsWaitedForWhenItIsDestroyed) {
  const auto group = group_of_all();
  for_all_orders([&] {
    const Buffer values = own(kElements), room = reduce_room(*group, kElements);
    static_cast<void>(group->all_reduce(values.view(), values.view(), comm::ReduceOp::sum, Accumulate::no,
                                        room.view(), kReduce));
    EXPECT_EQ(values.get(kCopyOut)[17], sum_over(all, 17));
  });
}

TEST_P(NcclOrder, AWorkMayOutliveItsGroup) {
  for_all_orders([&] {
    auto group = group_of_all();
    const Buffer values = own(kElements), room = reduce_room(*group, kElements);
    const auto work = group->all_reduce(values.view(), values.view(), comm::ReduceOp::sum, Accumulate::no,
                                        room.view(), kReduce);
    group.reset();
    work->wait(device::Stream::host);
    EXPECT_EQ(values.get()[17], sum_over(all, 17));
  });
}

TEST_P(NcclOrder, ProgressAloneCompletes) {
  const auto group = group_of_all();
  for_all_orders([&] {
    const Buffer values = own(kElements), room = reduce_room(*group, kElements);
    const auto work = group->all_reduce(values.view(), values.view(), comm::ReduceOp::sum, Accumulate::no,
                                        room.view(), kReduce);
    while (!work->progress()) {
    }
    EXPECT_EQ(values.get(kCopyOut)[17], sum_over(all, 17));
  });
}

TEST_P(NcclOrder, MemoryThatTravelsIsAlignedAndZero) {
  for (const std::int64_t bytes : {4, 4096, 5'000'000}) {
    const device::Memory memory = world().allocate(bytes);
    EXPECT_EQ(memory.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % 4096, 0U);
    std::vector<std::int32_t> values(static_cast<std::size_t>(bytes / 4), -1);
    device().download(values.data(), {memory.data(), DType::int32, 1, bytes / 4}, kCopyOut);
    device().synchronize(kCopyOut);
    EXPECT_EQ(values, std::vector<std::int32_t>(values.size()));
  }
  EXPECT_EQ(world().allocate(0).data(), nullptr);
}

TEST_P(NcclOrder, TheWorldIsThatOfMpiOtherwise) {
  EXPECT_EQ(world().size(), mpi.size());
  EXPECT_EQ(world().rank(), mpi.rank());
  EXPECT_EQ(world().backend(), comm::Backend::nccl);
  EXPECT_EQ(world().topology().host, mpi.topology().host);
  EXPECT_NE(world().describe().find(mpi.describe()), std::string::npos) << world().describe();
  EXPECT_NE(world().describe().find("NCCL 2."), std::string::npos) << world().describe();
  std::array<std::int64_t, 1> ranks = {1};
  world().sum(std::span<std::int64_t>(ranks));
  EXPECT_EQ(ranks[0], mpi.size());
  world().barrier();
  EXPECT_NO_THROW(world().check());
}

}  // namespace
}  // namespace llampi::test
