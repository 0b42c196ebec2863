// SPDX-License-Identifier: Apache-2.0
// Collectives of several groups on one stream run in the order in which they were issued.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/workspace.hpp"
#include "support/mpi_test.hpp"
#include "support/rank_values.hpp"
#include "support/streams.hpp"

namespace llampi::test {
namespace {

using namespace comm;

constexpr std::int64_t kElements = 20'011;

/// The first rows * columns ranks as a matrix; the others are groups of one.
struct Grid {
  int rows;
  int columns;

  std::vector<int> row_of(int rank) const {
    if (rank >= rows * columns) return {rank};
    std::vector<int> ranks;
    for (int column = 0; column < columns; ++column) ranks.push_back(rank - rank % columns + column);
    return ranks;
  }
  std::vector<int> column_of(int rank) const {
    if (rank >= rows * columns) return {rank};
    std::vector<int> ranks;
    for (int line = 0; line < rows; ++line) ranks.push_back(line * columns + rank % columns);
    return ranks;
  }
};

std::vector<Grid> grids(int ranks) {
  std::vector<Grid> fitting = {{1, ranks}, {ranks, 1}};
  for (const Grid grid : {Grid{2, 2}, Grid{2, 3}, Grid{3, 2}, Grid{2, 4}}) {
    if (grid.rows * grid.columns <= ranks) fitting.push_back(grid);
  }
  return fitting;
}

/// A hybrid reduction with its buffers: shards in the row, replicas in the column, and a gather beside it.
struct Hybrid {
  std::vector<float> whole, shard, sums, own, gathered;
  std::unique_ptr<Work> scatter, reduce, gather;

  void issue(Group& row_group, Group& column_group, int rank, std::uint64_t salt, Tensor workspace) {
    whole = values<float>(rank, kElements * row_group.size(), salt);
    shard.assign(kElements, -7);
    sums.assign(kElements, 3);
    own = values<float>(rank, kElements, salt + 1000);
    gathered.resize(own.size() * static_cast<std::size_t>(row_group.size()));
    scatter = row_group.reduce_scatter(row(whole), row(shard), Accumulate::no, workspace, test::kReduce);
    gather = row_group.all_gather(row(own), row(gathered), test::kUnshard);
    reduce = column_group.all_reduce(row(shard), row(sums), ReduceOp::sum, Accumulate::yes, workspace,
                                     test::kReduce);
  }

  void expect(const Grid& grid, int rank, std::uint64_t salt) const {
    const auto shards = grid.row_of(rank);
    const std::int64_t begin = (std::find(shards.begin(), shards.end(), rank) - shards.begin()) * kElements;
    for (std::int64_t i = 0; i < kElements; ++i) {
      std::vector<float> rows;
      for (const int replica : grid.column_of(rank))
        rows.push_back(tree_sum<float>(grid.row_of(replica), begin + i, salt));
      ASSERT_EQ(sums[static_cast<std::size_t>(i)], 3 + tree_sum(std::move(rows))) << i;
    }
    for (std::size_t i = 0; i < gathered.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i);
      ASSERT_EQ(gathered[i], value<float>(shards[i / kElements], index % kElements, salt + 1000)) << i;
    }
  }
};

// Every reduction of the list uses the one workspace; ranks wait for different ones first.
TEST(Groups, ShareAStreamAndAWorkspace) {
  World& world = test_world();
  for (const Grid& grid : grids(world.size())) {
    SCOPED_TRACE(fmt::format("{} x {}", grid.rows, grid.columns));
    const auto row_group = world.group(grid.row_of(world.rank()));
    const auto column_group = world.group(grid.column_of(world.rank()));
    std::vector<std::int64_t> storage;
    const Tensor workspace = workspace_row(
        storage,
        std::max(reduce_scatter_workspace(kElements * row_group->size(), row_group->size(), DType::float32),
                 all_reduce_workspace(kElements, column_group->size(), DType::float32)));
    std::vector<Hybrid> list(10);
    for (std::uint64_t i = 0; i < list.size(); ++i) {
      list[i].issue(*row_group, *column_group, world.rank(), i, workspace);
    }
    std::vector<Work*> works;
    for (Hybrid& hybrid : list)
      works.insert(works.end(), {hybrid.scatter.get(), hybrid.gather.get(), hybrid.reduce.get()});
    if (world.rank() % 3 == 1) std::reverse(works.begin(), works.end());
    if (world.rank() % 3 == 2) std::rotate(works.begin(), works.begin() + 10, works.end());
    for (Work* work : works) work->wait(device::Stream::compute);
    for (std::uint64_t i = 0; i < list.size(); ++i) list[i].expect(grid, world.rank(), i);
  }
}

// Pairs of neighbours around a ring: every rank shares one group with each of two others, and none with most.
// What a pair sums is the next pair's input, so every rank can follow all pairs in their order.
TEST(Groups, OverlapInPart) {
  World& world = test_world();
  const int ranks = world.size();
  std::vector<std::unique_ptr<Group>> pairs(static_cast<std::size_t>(ranks));
  for (int first = 0; first < ranks; ++first) {
    const int second = (first + 1) % ranks;
    if (world.rank() != first && world.rank() != second) continue;
    pairs[static_cast<std::size_t>(first)] =
        world.group(ranks == 1 ? std::vector<int>{0} : std::vector<int>{first, second});
  }

  std::vector<std::vector<double>> expected;
  for (int rank = 0; rank < ranks; ++rank) expected.push_back(values<double>(rank, kElements));
  std::vector<double> numbers = expected[static_cast<std::size_t>(world.rank())];
  std::vector<std::int64_t> storage;
  const Tensor workspace = workspace_row(storage, all_reduce_workspace(kElements, 2, DType::float64));
  std::vector<std::unique_ptr<Work>> works;
  for (int round = 0; round < 3; ++round) {
    for (std::size_t first = 0; first < pairs.size(); ++first) {
      if (pairs[first] != nullptr) {
        works.push_back(pairs[first]->all_reduce(row(numbers), row(numbers), ReduceOp::sum, Accumulate::no,
                                                 workspace, test::kReduce));
      }
      const std::size_t second = (first + 1) % pairs.size();
      if (second == first) continue;
      for (std::size_t i = 0; i < numbers.size(); ++i) expected[first][i] += expected[second][i];
      expected[second] = expected[first];
    }
  }
  if (world.rank() % 2 == 1) std::reverse(works.begin(), works.end());
  for (const auto& work : works) work->wait(device::Stream::compute);
  EXPECT_TRUE(numbers == expected[static_cast<std::size_t>(world.rank())]);
}

// Groups end while their collectives wait behind those of another.
TEST(Groups, MayEndBeforeTheirCollectives) {
  World& world = test_world();
  std::vector<std::vector<double>> numbers;
  std::vector<std::int64_t> storage;
  const Tensor workspace =
      workspace_row(storage, all_reduce_workspace(kElements, world.size(), DType::float64));
  std::vector<std::unique_ptr<Group>> groups;
  std::vector<std::unique_ptr<Work>> works;
  for (std::uint64_t i = 0; i < 3; ++i) {
    groups.push_back(world.group(first_ranks(world.size())));
    numbers.push_back(values<double>(world.rank(), kElements, i));
  }
  for (std::size_t i = 0; i < 3; ++i) {
    works.push_back(groups[i]->all_reduce(row(numbers[i]), row(numbers[i]), ReduceOp::sum, Accumulate::no,
                                          workspace, test::kReduce));
  }
  groups.clear();
  works.back()->wait(device::Stream::compute);
  for (std::uint64_t salt = 0; salt < 3; ++salt) {
    for (std::int64_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(numbers[salt][static_cast<std::size_t>(i)],
                tree_sum<double>(first_ranks(world.size()), i, salt));
    }
  }
}

}  // namespace
}  // namespace llampi::test
