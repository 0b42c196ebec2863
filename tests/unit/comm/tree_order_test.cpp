// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/tree_order.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "comm/split.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/workspace.hpp"
#include "llampi/core/half.hpp"
#include "support/rank_values.hpp"

namespace llampi::test {
namespace {

using namespace comm;

TEST(TreeOrder, MaximumIsNanIfAnyContributionIs) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> contributions = {nan, 1, 5, 2, nan, 6, 4, 3, 1};  // three ranks, three elements
  std::vector<float> out(3);
  combine_in_tree_order(tensor(contributions.data(), 3, 3), ReduceOp::max, Accumulate::no, row(out));
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_EQ(out[2], 6);
}

TEST(TreeOrder, IsKeptForManyRanks) {
  const int ranks = 61;
  const std::int64_t elements = 5000;  // more than two blocks
  std::vector<float> contributions;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const float x : values<float>(rank, elements)) contributions.push_back(x);
  }
  std::vector<float> out(static_cast<std::size_t>(elements), 3);
  combine_in_tree_order(tensor(contributions.data(), ranks, elements), ReduceOp::sum, Accumulate::yes,
                        row(out));
  for (std::int64_t i = 0; i < elements; ++i) {
    ASSERT_EQ(out[static_cast<std::size_t>(i)], 3 + tree_sum<float>(first_ranks(ranks), i)) << i;
  }
}

TEST(TreeOrder, NarrowSumsMayExceedTheNarrowRange) {
  std::vector<std::uint16_t> contributions = {to_float16(60000), to_float16(-1),  //
                                              to_float16(60000), to_float16(INFINITY)};
  const Tensor rows{contributions.data(), DType::float16, 2, 2};
  std::vector<float> wide(2);
  combine_in_tree_order(rows, ReduceOp::sum, Accumulate::no, row(wide));
  EXPECT_EQ(wide[0], 2 * from_float16(to_float16(60000)));
  EXPECT_EQ(wide[1], INFINITY);
  std::vector<std::uint16_t> narrow(2);
  combine_in_tree_order(rows, ReduceOp::sum, Accumulate::no, Tensor{narrow.data(), DType::float16, 1, 2});
  EXPECT_EQ(from_float16(narrow[0]), INFINITY);
  EXPECT_EQ(from_float16(narrow[1]), INFINITY);
}

// As within an all-reduce: the lower halves take the place of a contribution. More than two blocks.
TEST(TreeOrder, HalvesOfSumsAreTheSums) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    const std::int64_t elements = 5000;
    std::vector<std::uint16_t> contributions;
    for (int rank = 0; rank < 3; ++rank) {
      for (const float x : values<float>(rank, elements)) {
        contributions.push_back(dtype == DType::bfloat16 ? to_bfloat16(x) : to_float16(x * 0x1p-10F));
      }
    }
    const Tensor rows{contributions.data(), dtype, 3, elements};
    std::vector<float> expected(5000, 3);
    combine_in_tree_order(rows, ReduceOp::sum, Accumulate::yes, row(expected));
    std::vector<std::uint16_t> upper(5000);
    std::vector<float> out(5000, 3);
    sum_to_halves(rows, upper.data(), contributions.data() + elements);
    add_halves(upper.data(), contributions.data() + elements, row(out));
    EXPECT_EQ(out, expected) << to_string(dtype);
  }
}

TEST(TreeOrder, RefusesWhatCannotBeReduced) {
  EXPECT_THROW(require_reducible(DType::float32, DType::bfloat16), Error);
  EXPECT_THROW(require_reducible(DType::float64, DType::float32), Error);
  EXPECT_THROW(require_reducible(DType::bfloat16, DType::float16), Error);
  EXPECT_THROW(require_reducible(DType::int32, DType::float32), Error);
  EXPECT_NO_THROW(require_reducible(DType::float16, DType::float32));
}

TEST(Split, CoversEveryElementOnce) {
  for (const int ranks : {2, 3, 8, 61}) {
    for (const std::int64_t elements : {0, 1, 5, 60, 61, 62, 1000, 65537, 1 << 20}) {
      const AllReduceSplit split = split_all_reduce(elements, ranks, DType::float32);
      EXPECT_EQ(split.head, split.slice * ranks);
      EXPECT_EQ(split.head + split.tail, elements);
      if (split.head > 0) {
        EXPECT_LT(split.tail, ranks);
      }
      EXPECT_LE((split.head + split.tail * ranks) * 4, all_reduce_workspace(elements, ranks, DType::float32));
    }
  }
  EXPECT_EQ(all_reduce_workspace(1000, 1, DType::float32), 0);
  EXPECT_EQ(reduce_scatter_workspace(1000, 1, DType::float32), 0);
}

}  // namespace
}  // namespace llampi::test
