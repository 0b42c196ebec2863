// SPDX-License-Identifier: Apache-2.0
// Reductions of bfloat16 and float16: summed in float32 in the order of a tree, rounded once. Everything is compared
// bit by bit.
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/mpi/mpi_world.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/workspace.hpp"
#include "llampi/core/half.hpp"
#include "support/mpi_test.hpp"
#include "support/rank_values.hpp"
#include "support/streams.hpp"

namespace llampi::test {
namespace {

using namespace comm;

constexpr std::uint16_t kCanary = 0xABCD;

struct Bfloat16 {
  static constexpr DType dtype = DType::bfloat16;
  static float widen(std::uint16_t bits) { return from_bfloat16(bits); }
  static std::uint16_t narrow(float x) { return to_bfloat16(x); }
};

struct Float16 {
  static constexpr DType dtype = DType::float16;
  static float widen(std::uint16_t bits) { return from_float16(bits); }
  static std::uint16_t narrow(float x) { return to_float16(x); }
};

/// 2^-10 brings the numbers, and the sums of eight, into float16's range.
template <class Format>
std::uint16_t bits_of(int rank, std::int64_t index) {
  return Format::narrow(value<float>(rank, index) * 0x1p-10F);
}

template <class Format>
float wide_sum(const std::vector<int>& ranks, std::int64_t index) {
  std::vector<float> terms;
  for (const int rank : ranks) terms.push_back(Format::widen(bits_of<Format>(rank, index)));
  return tree_sum(std::move(terms));
}

template <class Format>
class Narrow : public ::testing::Test {
 protected:
  using Bits = std::vector<std::uint16_t>;

  World& world = test_world();
  std::vector<int> all = first_ranks(world.size());
  std::unique_ptr<Group> group = world.group(all);
  std::vector<std::int64_t> storage;

  static Tensor narrow_row(Bits& bits, std::int64_t elements) {
    return {bits.data(), Format::dtype, 1, elements};
  }

  /// This rank's numbers, and an element that nobody may touch.
  Bits numbers(std::int64_t elements) const {
    Bits bits;
    for (std::int64_t i = 0; i < elements; ++i) bits.push_back(bits_of<Format>(world.rank(), i));
    bits.push_back(kCanary);
    return bits;
  }

  /// So many bytes and none more, with a canary behind them.
  Tensor workspace(std::int64_t bytes) {
    storage.assign(static_cast<std::size_t>(bytes / 8 + 2), -1);
    return {storage.data(), Format::dtype, 1, bytes / 2};
  }
  void expect_canaries(const Bits& bits) {
    EXPECT_EQ(bits.back(), kCanary);
    EXPECT_EQ(storage.back(), -1);
  }

  std::vector<float> expected(std::int64_t begin, std::int64_t end, Accumulate accumulate,
                              float before) const {
    std::vector<float> sums;
    for (std::int64_t i = begin; i < end; ++i) {
      const float sum = wide_sum<Format>(all, i);
      sums.push_back(accumulate == Accumulate::yes ? before + sum : sum);
    }
    return sums;
  }
  static Bits rounded(const std::vector<float>& sums) {
    Bits bits;
    for (const float sum : sums) bits.push_back(Format::narrow(sum));
    return bits;
  }

  void expect_reduce_scatter(Group& some, std::int64_t elements, Accumulate accumulate) {
    SCOPED_TRACE(fmt::format("{} elements, accumulate {}", elements, accumulate == Accumulate::yes));
    const std::int64_t in_all = elements * some.size(), begin = elements * some.rank();
    const std::int64_t bytes = reduce_scatter_workspace(in_all, some.size(), Format::dtype);
    const float before = 3.25F;
    const auto sums = expected(begin, begin + elements, accumulate, before);

    Bits whole = numbers(in_all);
    std::vector<float> wide(static_cast<std::size_t>(elements), before);
    some.reduce_scatter(narrow_row(whole, in_all), row(wide), accumulate, workspace(bytes), test::kReduce)
        ->wait(device::Stream::compute);
    EXPECT_EQ(wide, sums);
    expect_canaries(whole);

    whole = numbers(in_all);
    Bits narrow(static_cast<std::size_t>(elements), Format::narrow(before));
    some.reduce_scatter(narrow_row(whole, in_all), narrow_row(narrow, elements), accumulate, workspace(bytes),
                        test::kReduce)
        ->wait(device::Stream::compute);
    EXPECT_EQ(narrow, rounded(sums));
    expect_canaries(whole);
  }

  void expect_all_reduce(Group& some, std::int64_t elements, Accumulate accumulate) {
    SCOPED_TRACE(fmt::format("{} elements, accumulate {}", elements, accumulate == Accumulate::yes));
    const std::int64_t bytes = all_reduce_workspace(elements, some.size(), Format::dtype);
    const float before = 3.25F;
    const auto sums = expected(0, elements, accumulate, before);
    const auto reduce = [&](Tensor values, Tensor result) {
      some.all_reduce(values, result, ReduceOp::sum, accumulate, workspace(bytes), test::kReduce)
          ->wait(device::Stream::compute);
    };

    Bits values = numbers(elements);
    std::vector<float> wide(static_cast<std::size_t>(elements), before);
    reduce(narrow_row(values, elements), row(wide));
    EXPECT_EQ(wide, sums);
    expect_canaries(values);

    values = numbers(elements);
    Bits narrow(static_cast<std::size_t>(elements), Format::narrow(before));
    reduce(narrow_row(values, elements), narrow_row(narrow, elements));
    EXPECT_EQ(narrow, rounded(sums));
    expect_canaries(values);
  }
};

using Formats = ::testing::Types<Bfloat16, Float16>;
TYPED_TEST_SUITE(Narrow, Formats);

TYPED_TEST(Narrow, ReduceScatterSumsInFloat32) {
  for (const std::int64_t elements : kCollectiveSizes) {
    this->expect_reduce_scatter(*this->group, elements, Accumulate::no);
    this->expect_reduce_scatter(*this->group, elements, Accumulate::yes);
  }
}

TYPED_TEST(Narrow, AllReduceSumsInFloat32) {
  for (const std::int64_t elements : kCollectiveSizes) {
    this->expect_all_reduce(*this->group, elements, Accumulate::no);
    this->expect_all_reduce(*this->group, elements, Accumulate::yes);
  }
}

TYPED_TEST(Narrow, AllReduceMayBeInPlace) {
  for (const std::int64_t elements : kCollectiveSizes) {
    auto values = this->numbers(elements);
    const Tensor numbers = this->narrow_row(values, elements);
    const auto workspace =
        this->workspace(all_reduce_workspace(elements, this->group->size(), TypeParam::dtype));
    this->group->all_reduce(numbers, numbers, ReduceOp::sum, Accumulate::no, workspace, test::kReduce)
        ->wait(device::Stream::compute);
    this->expect_canaries(values);
    values.pop_back();
    EXPECT_EQ(values, this->rounded(this->expected(0, elements, Accumulate::no, 0)))
        << elements << " elements";
  }
}

TYPED_TEST(Narrow, MaximumIsThatOfAllRanks) {
  for (const std::int64_t elements : kCollectiveSizes) {
    auto values = this->numbers(elements);
    std::vector<float> result(static_cast<std::size_t>(elements));
    const auto workspace =
        this->workspace(all_reduce_workspace(elements, this->group->size(), TypeParam::dtype));
    this->group
        ->all_reduce(this->narrow_row(values, elements), row(result), ReduceOp::max, Accumulate::no,
                     workspace, test::kReduce)
        ->wait(device::Stream::compute);
    for (std::int64_t i = 0; i < elements; ++i) {
      float largest = TypeParam::widen(bits_of<TypeParam>(0, i));
      for (const int rank : this->all)
        largest = std::max(largest, TypeParam::widen(bits_of<TypeParam>(rank, i)));
      ASSERT_EQ(result[static_cast<std::size_t>(i)], largest) << i;
    }
  }
}

TYPED_TEST(Narrow, MessagesMayBeLongerThanMpiCounts) {
  const auto some = make_mpi_group(this->world, this->all, {.max_count = 1000});
  for (const std::int64_t elements : {1000, 65537}) {
    this->expect_reduce_scatter(*some, elements, Accumulate::yes);
    this->expect_all_reduce(*some, elements, Accumulate::yes);
  }
}

// Guards the tests above: they see sums that are rounded at every rank, added in another order, or rounded
// before they are added.
TYPED_TEST(Narrow, NumbersShowHowTheyAreSummed) {
  int each = 0, order = 0, twice = 0;
  for (std::int64_t i = 0; i < kCollectiveSizes.back(); ++i) {
    const auto widen = [&](int rank) { return TypeParam::widen(bits_of<TypeParam>(rank, i)); };
    const auto round = [](float x) { return TypeParam::widen(TypeParam::narrow(x)); };
    const float sum = wide_sum<TypeParam>({0, 1, 2}, i);
    each += round(sum) != round(round(widen(0) + widen(1)) + widen(2));
    order += sum != wide_sum<TypeParam>({2, 1, 0}, i);
    twice += round(3.25F + sum) != round(3.25F + round(sum));
  }
  for (const int differing : {each, order, twice}) EXPECT_GT(differing, 100);
}

}  // namespace
}  // namespace llampi::test
