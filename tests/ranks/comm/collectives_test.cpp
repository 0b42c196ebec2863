// SPDX-License-Identifier: Apache-2.0
// Every collective against what each rank computes by itself from all ranks' numbers. Everything is compared
// bit by bit.
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/mpi/mpi_world.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/workspace.hpp"
#include "support/mpi_test.hpp"
#include "support/rank_values.hpp"
#include "support/streams.hpp"

namespace llampi::test {
namespace {

using namespace comm;

template <class T>
class Collectives : public ::testing::Test {
 protected:
  World& world = test_world();
  std::vector<int> all = first_ranks(world.size());
  std::unique_ptr<Group> group = world.group(all);
  std::vector<std::int64_t> storage;

  void gather(Group& some, std::int64_t elements) {
    std::vector<T> shard = values<T>(world.rank(), elements);
    std::vector<T> whole(static_cast<std::size_t>(elements * some.size()), T(-7));
    some.all_gather(row(shard), row(whole), test::kUnshard)->wait(device::Stream::compute);
    std::vector<T> expected;
    for (const int rank : some.members()) {
      for (std::int64_t i = 0; i < elements; ++i) expected.push_back(value<T>(rank, i));
    }
    EXPECT_EQ(whole, expected) << elements << " elements";
  }

  std::vector<T> reduce_scatter(Group& some, std::int64_t shard_elements, Accumulate accumulate, T before) {
    std::vector<T> whole = values<T>(world.rank(), shard_elements * some.size());
    std::vector<T> shard(static_cast<std::size_t>(shard_elements), before);
    const std::int64_t bytes =
        reduce_scatter_workspace(shard_elements * some.size(), some.size(), dtype_of<T>);
    some.reduce_scatter(row(whole), row(shard), accumulate, workspace_row(storage, bytes), test::kReduce)
        ->wait(device::Stream::compute);
    return shard;
  }

  std::vector<T> all_reduce(Group& some, std::int64_t elements, ReduceOp op) {
    std::vector<T> numbers = values<T>(world.rank(), elements);
    const std::int64_t bytes = all_reduce_workspace(elements, some.size(), dtype_of<T>);
    some.all_reduce(row(numbers), row(numbers), op, Accumulate::no, workspace_row(storage, bytes),
                    test::kReduce)
        ->wait(device::Stream::compute);
    return numbers;
  }

  std::vector<T> expected_sums(const Group& some, std::int64_t begin, std::int64_t end) {
    std::vector<T> sums;
    for (std::int64_t i = begin; i < end; ++i) sums.push_back(tree_sum<T>(some.members(), i));
    return sums;
  }

  void expect_reductions(Group& some, std::int64_t elements) {
    const std::int64_t begin = some.rank() * elements;
    EXPECT_EQ(reduce_scatter(some, elements, Accumulate::no, T(99)),
              expected_sums(some, begin, begin + elements))
        << elements << " elements";
    EXPECT_EQ(all_reduce(some, elements, ReduceOp::sum), expected_sums(some, 0, elements))
        << elements << " elements";
  }
};

using Types = ::testing::Types<float, double, std::int64_t, std::int32_t>;
TYPED_TEST_SUITE(Collectives, Types);

TYPED_TEST(Collectives, AllGatherBringsEveryShard) {
  for (const std::int64_t elements : kCollectiveSizes) this->gather(*this->group, elements);
}

TYPED_TEST(Collectives, AllGatherFromItsPlaceInTheWhole) {
  for (const std::int64_t elements : kCollectiveSizes) {
    std::vector<TypeParam> whole(static_cast<std::size_t>(elements * this->group->size()), TypeParam(-7));
    const Tensor shard =
        row(whole).slice(this->group->rank() * elements, (this->group->rank() + 1) * elements);
    const auto own = values<TypeParam>(this->world.rank(), elements);
    std::copy(own.begin(), own.end(), shard.as<TypeParam>());
    this->group->all_gather(shard, row(whole), test::kUnshard)->wait(device::Stream::compute);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i);
      ASSERT_EQ(whole[i], value<TypeParam>(static_cast<int>(index / elements), index % elements))
          << i << " of " << elements;
    }
  }
}

TYPED_TEST(Collectives, SumsAreInTreeOrder) {
  for (const std::int64_t elements : kCollectiveSizes) this->expect_reductions(*this->group, elements);
}

// Guards the test above: were the order of no consequence, it could not see a wrong one.
TEST(TestValues, SumsDependOnTheOrder) {
  std::int64_t differing = 0;
  for (std::int64_t i = 0; i < 1000; ++i) {
    differing += tree_sum<float>({0, 1, 2}, i) != tree_sum<float>({2, 1, 0}, i);
  }
  EXPECT_GT(differing, 100);
}

TYPED_TEST(Collectives, ReduceScatterAddsTheSumAtLast) {
  for (const std::int64_t elements : kCollectiveSizes) {
    const TypeParam before(3);
    auto expected = this->expected_sums(*this->group, this->group->rank() * elements,
                                        (this->group->rank() + 1) * elements);
    for (TypeParam& sum : expected) sum = before + sum;
    EXPECT_EQ(this->reduce_scatter(*this->group, elements, Accumulate::yes, before), expected)
        << elements << " elements";
  }
}

TYPED_TEST(Collectives, AllReduceIntoAnotherBufferAndAdding) {
  for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
    for (const std::int64_t elements : kCollectiveSizes) {
      auto numbers = values<TypeParam>(this->world.rank(), elements);
      std::vector<TypeParam> result(static_cast<std::size_t>(elements), TypeParam(3));
      const std::int64_t bytes = all_reduce_workspace(elements, this->group->size(), dtype_of<TypeParam>);
      this->group
          ->all_reduce(row(numbers), row(result), ReduceOp::sum, accumulate,
                       workspace_row(this->storage, bytes), test::kCopy)
          ->wait(device::Stream::compute);
      auto expected = this->expected_sums(*this->group, 0, elements);
      if (accumulate == Accumulate::yes) {
        for (TypeParam& sum : expected) sum = TypeParam(3) + sum;
      }
      EXPECT_EQ(result, expected) << elements << " elements";
    }
  }
}

TYPED_TEST(Collectives, MaximumIsThatOfAllRanks) {
  for (const std::int64_t elements : kCollectiveSizes) {
    std::vector<TypeParam> expected;
    for (std::int64_t i = 0; i < elements; ++i) {
      TypeParam largest = value<TypeParam>(0, i);
      for (const int rank : this->all) largest = std::max(largest, value<TypeParam>(rank, i));
      expected.push_back(largest);
    }
    EXPECT_EQ(this->all_reduce(*this->group, elements, ReduceOp::max), expected) << elements << " elements";
  }
}

// Even and odd ranks, in falling order: two groups at the same time, whose ranks are not the world's.
TYPED_TEST(Collectives, GroupsMayBeOfSomeRanksInAnyOrder) {
  std::vector<int> members;
  for (int rank = this->world.size() - 1; rank >= 0; --rank) {
    if (rank % 2 == this->world.rank() % 2) members.push_back(rank);
  }
  const auto some = this->world.group(members);
  EXPECT_EQ(some->size(), static_cast<int>(members.size()));
  EXPECT_EQ(some->members(), members);
  EXPECT_EQ(members[static_cast<std::size_t>(some->rank())], this->world.rank());
  for (const std::int64_t elements : {5, 1000}) {
    this->gather(*some, elements);
    this->expect_reductions(*some, elements);
  }
}

// The types for messages of more than 2^31 bytes, with 2^31 replaced by small numbers, one of which divides
// the blocks.
TYPED_TEST(Collectives, MessagesMayBeLongerThanMpiCounts) {
  for (const std::int64_t max_count : {64, 1000}) {
    const auto some = make_mpi_group(this->world, this->all, {.max_count = max_count});
    for (const std::int64_t elements : {5, 1000, 65537}) {
      this->gather(*some, elements);
      this->expect_reductions(*some, elements);
    }
  }
}

TEST(Group, GathersHalfPrecision) {
  World& world = test_world();
  const auto group = world.group(first_ranks(world.size()));
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    std::vector<std::uint16_t> shard(5, static_cast<std::uint16_t>(1000 + world.rank()));
    std::vector<std::uint16_t> whole(static_cast<std::size_t>(5 * world.size()));
    const Tensor shard_row{shard.data(), dtype, 1, 5};
    const Tensor whole_row{whole.data(), dtype, 1, 5 * world.size()};
    group->all_gather(shard_row, whole_row, test::kUnshard)->wait(device::Stream::compute);
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(whole[i], 1000 + i / 5);
  }
}

TEST(Group, RefusesBuffersThatDoNotFit) {
  World& world = test_world();
  const auto group = world.group(first_ranks(world.size()));
  std::vector<float> shard(4);
  std::vector<float> whole(static_cast<std::size_t>(4 * world.size() + 1));
  std::vector<double> doubles(4);
  const Tensor fitting = row(whole).slice(0, 4 * world.size());
  EXPECT_THROW(group->all_gather(row(shard), row(whole), test::kUnshard), Error);
  EXPECT_THROW(group->reduce_scatter(row(whole), row(shard), Accumulate::no, row(whole), test::kReduce),
               Error);
  EXPECT_THROW(
      group->all_reduce(row(doubles), row(shard), ReduceOp::sum, Accumulate::no, row(whole), test::kReduce),
      Error);
  EXPECT_THROW(
      group->all_reduce(row(shard), row(shard), ReduceOp::sum, Accumulate::yes, row(whole), test::kReduce),
      Error);
  // Narrower than what travels, and wider in the same place.
  const Tensor narrow_shard{shard.data(), DType::bfloat16, 1, 4};
  EXPECT_THROW(group->reduce_scatter(fitting, narrow_shard, Accumulate::no, row(whole), test::kReduce),
               Error);
  EXPECT_THROW(
      group->all_reduce(narrow_shard, row(shard), ReduceOp::sum, Accumulate::no, row(whole), test::kReduce),
      Error);
  if (world.size() > 1) {
    EXPECT_THROW(group->reduce_scatter(fitting, row(shard), Accumulate::no, Tensor(), test::kReduce), Error);
  }
}

TEST(CollectivesOf8Bits, AreGatheredByteByByteAndNotReduced) {
  World& world = test_world();
  const std::unique_ptr<Group> group = world.group(first_ranks(world.size()));
  const auto byte = [](int rank, std::int64_t i) {
    return static_cast<std::uint8_t>(i + i / 256 + 37 * rank);
  };
  for (const DType dtype : {DType::float8_e4m3fn, DType::float8_e5m2}) {
    for (const std::int64_t elements : kCollectiveSizes) {
      std::vector<std::uint8_t> own(static_cast<std::size_t>(elements)),
          all(static_cast<std::size_t>(elements * world.size()));
      for (std::int64_t i = 0; i < elements; ++i) own[static_cast<std::size_t>(i)] = byte(world.rank(), i);
      const Tensor shard{own.data(), dtype, 1, elements},
          whole{all.data(), dtype, 1, elements * world.size()};
      group->all_gather(shard, whole, test::kUnshard)->wait(device::Stream::compute);
      for (std::int64_t i = 0; i < whole.cols; ++i) {
        const std::uint8_t expected = byte(static_cast<int>(i / elements), i % elements);
        ASSERT_EQ(all[static_cast<std::size_t>(i)], expected) << i << " of " << whole.cols;
      }
      EXPECT_THROW(group->all_reduce(shard, shard, ReduceOp::sum, Accumulate::no, {}, test::kReduce), Error);
      EXPECT_THROW(group->reduce_scatter(whole, shard, Accumulate::no, {}, test::kReduce), Error);
    }
  }
}

}  // namespace
}  // namespace llampi::test
