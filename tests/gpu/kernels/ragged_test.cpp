// SPDX-License-Identifier: Apache-2.0
// The tables of packed documents and the orders of log_sum_exp that cuDNN reads.
#include <gtest/gtest.h>

#include <vector>

#include "device/cuda/kernels.cuh"
#include "device/cuda/ragged.hpp"

namespace llampi::test {
namespace {

using namespace device;
using namespace device::cuda;

/// The tables of one class; entries that nobody writes are -1.
struct Room {
  Room(std::int64_t above, std::int64_t longest, std::int64_t launches, std::int64_t batch) {
    tables.above = above;
    tables.longest = longest;
    tables.launches = launches;
    tables.batch = batch;
    const auto size = static_cast<std::size_t>(launches * tables.row());
    lengths.assign(size, -1);
    tables.lengths = lengths.data();
    for (int k = 0; k < RaggedTables::kOffsets; ++k) {
      offsets[k].assign(size, -1);
      tables.offsets[k] = offsets[k].data();
    }
  }
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> offsets[RaggedTables::kOffsets];
  RaggedTables tables;
};

TEST(Ragged, TablesOfDocumentsByLength) {
  // Of 3, 0, 300, 128, 1 and 129 tokens, and what is behind the last is not read.
  const std::vector<std::int32_t> begins{0, 3, 3, 303, 431, 432, 561, 99};
  const std::int64_t tokens = 561;
  Room small(0, 128, 2, 2), none(512, 2048, 1, 2), large(128, 512, 2, 1);
  const RaggedTables tables[] = {small.tables, {}, large.tables, none.tables};
  const RaggedWidths widths{{std::int64_t{1} << 31, 7, 2, 1}};  // elements are counted in 64 bits
  fill_ragged_tables(begins.data(), 6, tokens, tables, widths, nullptr);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(small.lengths, (std::vector<std::int32_t>{3, 128, -1, -1, 1, 0, -1, -1}));
  EXPECT_EQ(large.lengths, (std::vector<std::int32_t>{300, -1, -1, -1, 129, -1, -1, -1}));
  EXPECT_EQ(none.lengths, (std::vector<std::int32_t>{0, 0, -1, -1}));
  for (int k = 0; k < RaggedTables::kOffsets; ++k) {
    const std::int64_t w = widths.of[k], end = tokens * w;
    EXPECT_EQ(small.offsets[k], (std::vector<std::int64_t>{0, 303 * w, 431 * w, -1, 431 * w, end, end, -1}));
    EXPECT_EQ(large.offsets[k], (std::vector<std::int64_t>{3 * w, 432 * w, -1, -1, 432 * w, end, -1, -1}));
    EXPECT_EQ(none.offsets[k], (std::vector<std::int64_t>{end, end, end, -1}));
  }
}

TEST(Ragged, MoreDocumentsThanThreadsOfABlock) {
  std::vector<std::int32_t> begins{0};
  std::vector<std::int32_t> odd, even;
  for (std::int32_t i = 0; i < 1000; ++i) {
    const std::int32_t length = i % 2 == 1 ? 1 + i % 100 : 129 + i % 100;
    (i % 2 == 1 ? odd : even).push_back(length);
    begins.push_back(begins.back() + length);
  }
  Room small(0, 128, 1, 512), large(128, 512, 5, 100);
  const RaggedTables tables[] = {small.tables, large.tables};
  fill_ragged_tables(begins.data(), 1000, begins.back(), tables, {{1, 1, 1, 1}}, nullptr);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  const auto row = static_cast<std::size_t>(large.tables.row());
  for (std::size_t i = 0; i < 500; ++i) {
    const std::size_t at = i / 100 * row + i % 100;
    EXPECT_EQ(small.lengths[i], odd[i]) << i;
    EXPECT_EQ(large.lengths[at], even[i]) << i;
    EXPECT_EQ(large.offsets[0][at], begins[2 * i]) << i;
    EXPECT_EQ(small.offsets[3][i], begins[2 * i + 1]) << i;
  }
  for (std::size_t i = 500; i < 512; ++i) EXPECT_EQ(small.lengths[i], 0) << i;
  EXPECT_EQ(large.offsets[0][100], begins[200]);  // of the first launch: where the second begins
  EXPECT_EQ(large.offsets[0][4 * row + 100], begins.back());
}

TEST(Ragged, RowsOfDocumentsAndNoOthers) {
  const std::int64_t tokens = 10, width = 3;
  const std::vector<std::int32_t> lengths{2, 3, 0};
  const std::vector<std::int64_t> begins{1 * width, 6 * width, tokens * width};
  std::vector<std::uint16_t> from(tokens * 16), to(tokens * 24, 7);  // 16 columns, and 24
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint16_t>(100 + i);
  // Each part moves by eight columns; the last one has nothing.
  const auto part = [&](std::int64_t column, std::int64_t bytes) {
    return DocumentRows::Part{.from = reinterpret_cast<const std::byte*>(from.data() + column),
                              .to = reinterpret_cast<std::byte*>(to.data() + column + 8),
                              .from_row = 32,
                              .to_row = 48,
                              .bytes = bytes};
  };
  copy_documents({.lengths = lengths.data(),
                  .begins = begins.data(),
                  .batch = 3,
                  .width = width,
                  .parts = {part(0, 16), part(8, 16), part(0, 0)}},
                 nullptr);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const bool copied = t == 1 || t == 2 || (t >= 6 && t < 9);
    for (std::int64_t c = 0; c < 24; ++c) {
      const auto expected = copied && c >= 8 ? from[static_cast<std::size_t>(t * 16 + c - 8)] : 7;
      EXPECT_EQ(to[static_cast<std::size_t>(t * 24 + c)], expected) << t << ", " << c;
    }
  }
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
