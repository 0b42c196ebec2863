// SPDX-License-Identifier: Apache-2.0
// The tables of packed documents and the orders of log_sum_exp that cuDNN reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "device/cuda/kernels.cuh"
#include "device/cuda/ragged.hpp"

namespace llampi::test {
namespace {

using namespace device;
using namespace device::cuda;

TEST(Ragged, TablesOfDocuments) {
  const std::vector<std::int32_t> offsets{0, 3, 4, 10, 99};  // what lies behind the last offset is not read
  const std::int64_t batch = 300;                            // more than a block of threads
  std::vector<std::int32_t> lengths(batch + 1, -1);
  std::vector<std::int64_t> wide(batch + 2, -1), narrow(batch + 2, -1);
  RaggedTables tables;
  tables.lengths = lengths.data();
  tables.offsets[0] = wide.data();
  tables.widths[0] = std::int64_t{1} << 31;  // elements are counted in 64 bits
  tables.offsets[3] = narrow.data();
  tables.widths[3] = 2;
  fill_ragged_tables(offsets.data(), 3, batch, tables, nullptr);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  for (std::int64_t i = 0; i <= batch; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t row = offsets[std::min<std::size_t>(at, 3)];
    EXPECT_EQ(wide[at], row << 31) << i;
    EXPECT_EQ(narrow[at], row * 2) << i;
    if (i == batch) continue;
    EXPECT_EQ(lengths[at], i < 3 ? offsets[at + 1] - offsets[at] : 0) << i;
  }
  EXPECT_EQ(lengths.back(), -1);
  EXPECT_EQ(wide.back(), -1);
  EXPECT_EQ(narrow.back(), -1);
}

TEST(Ragged, AFullTable) {
  const std::vector<std::int32_t> offsets{0, 1, 5};
  std::vector<std::int32_t> lengths(2, -1);
  RaggedTables tables;
  tables.lengths = lengths.data();
  fill_ragged_tables(offsets.data(), 2, 2, tables, nullptr);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(lengths, (std::vector<std::int32_t>{1, 4}));
}

TEST(Ragged, StatisticsInEachOrder) {
  const int heads = 3, length = 50, sequences = 7, tokens = length * sequences;
  std::vector<float> rows(heads * tokens), batched(rows.size(), -1.0F), by_token(rows.size(), -1.0F),
      back(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
  const RowStatistics of_rows{rows.data(), tokens, length, 1};
  copy_statistics(of_rows, {batched.data(), length, heads * length, 1}, heads, tokens, length, nullptr);
  const RowStatistics of_tokens{by_token.data(), 1, length * heads, heads};
  copy_statistics(of_rows, of_tokens, heads, tokens, length, nullptr);
  copy_statistics(of_tokens, {back.data(), tokens, length, 1}, heads, tokens, length, nullptr);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  for (int h = 0; h < heads; ++h) {
    for (int t = 0; t < tokens; ++t) {
      const float expected = rows[static_cast<std::size_t>(h * tokens + t)];
      EXPECT_EQ(batched[static_cast<std::size_t>((t / length * heads + h) * length + t % length)], expected);
      EXPECT_EQ(by_token[static_cast<std::size_t>(t * heads + h)], expected);
    }
  }
  EXPECT_EQ(back, rows);
}

/// Packed documents: the longest possible one does not divide the tokens.
TEST(Ragged, StatisticsOfALastPiece) {
  const int heads = 2, length = 40, tokens = 130;
  std::vector<float> rows(heads * tokens), by_token(rows.size() + 1, -1.0F);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
  copy_statistics({rows.data(), tokens, length, 1}, {by_token.data(), 1, length * heads, heads}, heads,
                  tokens, length, nullptr);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  for (int h = 0; h < heads; ++h) {
    for (int t = 0; t < tokens; ++t)
      EXPECT_EQ(by_token[static_cast<std::size_t>(t * heads + h)],
                rows[static_cast<std::size_t>(h * tokens + t)]);
  }
  EXPECT_EQ(by_token.back(), -1.0F);
}

}  // namespace
}  // namespace llampi::test
