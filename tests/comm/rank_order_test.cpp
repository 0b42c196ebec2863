#include "comm/mpi/rank_order.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "comm/split.hpp"
#include "comm/values.hpp"

namespace llampi {
namespace {

TEST(RankOrder, MaximumIsNanIfAnyContributionIs) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> contributions = {nan, 1, 5, 2, nan, 6, 4, 3, 1};  // three ranks, three elements
  std::vector<float> out(3);
  combine_in_rank_order(contributions.data(), 3, 3, 3, DType::float32, ReduceOp::max, Accumulate::no,
                        out.data());
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_EQ(out[2], 6);
}

TEST(RankOrder, ManyRanks) {
  const int ranks = 61;
  const std::int64_t elements = 5000;  // more than two blocks
  std::vector<float> contributions;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const float x : values<float>(rank, elements)) contributions.push_back(x);
  }
  std::vector<float> out(static_cast<std::size_t>(elements), 3);
  combine_in_rank_order(contributions.data(), elements, ranks, elements, DType::float32, ReduceOp::sum,
                        Accumulate::yes, out.data());
  for (std::int64_t i = 0; i < elements; ++i) {
    ASSERT_EQ(out[static_cast<std::size_t>(i)], 3 + rank_ordered_sum<float>(first_ranks(ranks), i)) << i;
  }
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
}  // namespace llampi
