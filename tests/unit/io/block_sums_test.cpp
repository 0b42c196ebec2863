// SPDX-License-Identifier: Apache-2.0
// Checksums of blocks from ranges that are cut and dealt in every way.
#include "llampi/io/block_sums.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace llampi::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int64_t kBlock = 10;
const std::vector<std::int64_t> kElements{37, 10, 1, 20};

std::vector<float> values_of(int dataset) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < kElements[dataset]; ++i)
    values.push_back(1.5F * static_cast<float>(i) - static_cast<float>(dataset));
  return values;
}

/// What must come out: the CRC-32 of each block in one go.
std::vector<io::RangeSum> expected() {
  std::vector<io::RangeSum> whole;
  for (int dataset = 0; dataset < std::ssize(kElements); ++dataset) {
    const auto values = values_of(dataset);
    for (std::int64_t begin = 0; begin < kElements[dataset]; begin += kBlock) {
      const std::int64_t elements = std::min(kBlock, kElements[dataset] - begin);
      const auto block = std::span(values).subspan(begin, elements);
      whole.push_back({dataset, io::crc32_of(std::as_bytes(block)), begin, elements});
    }
  }
  return whole;
}

void add(std::vector<io::RangeSum>& sums, int dataset, std::int64_t begin, std::int64_t end) {
  const auto values = values_of(dataset);
  io::add_sums(sums, dataset, begin, std::span(values).subspan(begin, end - begin), kBlock);
}

TEST(BlockSums, TheCrcIsThatOfZlib) {
  // The check value of CRC-32/ISO-HDLC, in the catalogue of parametrised CRC algorithms.
  const std::string digits = "123456789";
  EXPECT_EQ(io::crc32_of(std::as_bytes(std::span(digits))), 0xCBF43926U);
  EXPECT_EQ(io::crc32_of(std::as_bytes(std::span(digits).subspan(4)),
                         io::crc32_of(std::as_bytes(std::span(digits).first(4)))),
            0xCBF43926U);
  EXPECT_EQ(io::crc32_of({}, 0xCBF43926U), 0xCBF43926U);
}

TEST(BlockSums, RangesAreCutAtBlocks) {
  std::vector<io::RangeSum> sums;
  add(sums, 0, 7, 37);
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const auto& sum : sums) ranges.emplace_back(sum.begin, sum.elements);
  EXPECT_THAT(ranges, ElementsAre(std::pair(7, 3), std::pair(10, 10), std::pair(20, 10), std::pair(30, 7)));
}

// Each dataset is cut at random and the parts come in random order, by rank, or some of them twice: it is all
// the same.
TEST(BlockSums, DoNotDependOnTheDivision) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<io::RangeSum> sums;
    for (int dataset = 0; dataset < std::ssize(kElements); ++dataset) {
      for (unsigned copies = 1 + random() % 2; copies > 0; --copies) {  // replicas may be cut elsewhere
        std::int64_t begin = 0;
        while (begin < kElements[dataset]) {
          const auto end = std::min<std::int64_t>(kElements[dataset], begin + random() % 15);
          add(sums, dataset, begin, end);
          if (random() % 4 == 0) add(sums, dataset, begin, end);
          begin = end;
        }
      }
    }
    std::shuffle(sums.begin(), sums.end(), random);
    const auto blocks = io::combine(sums, kElements, kBlock);
    EXPECT_EQ(blocks.whole, expected());
    EXPECT_THAT(blocks.parts, IsEmpty());
  }
}

TEST(BlockSums, WhatIsMissingIsNotTakenForWhole) {
  std::vector<io::RangeSum> sums;
  add(sums, 0, 0, 9);    // but not element 9
  add(sums, 0, 10, 12);  // nor 12
  add(sums, 0, 13, 20);
  add(sums, 0, 21, 30);  // nor 20
  add(sums, 0, 30, 37);
  const auto blocks = io::combine(sums, kElements, kBlock);
  EXPECT_THAT(blocks.whole, ElementsAre(expected()[3]));
  EXPECT_EQ(blocks.parts.size(), 4U);

  add(sums, 0, 5, 21);  // block 1 as one, 20, and 5 to 9
  EXPECT_EQ(io::combine(sums, kElements, kBlock).whole.size(), 3U) << "0 to 8 and 5 to 9 only overlap";
  add(sums, 0, 9, 10);
  EXPECT_EQ(io::combine(sums, kElements, kBlock).whole.size(), 4U);
}

// The parts that a rank cannot put together itself are what it sends to the others.
TEST(BlockSums, WhatRanksSendAndWhatTheyHaveIsTheWhole) {
  std::vector<io::RangeSum> sent, whole;
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<io::RangeSum> own;
    for (int dataset = 0; dataset < std::ssize(kElements); ++dataset)
      add(own, dataset, kElements[dataset] * rank / 3, kElements[dataset] * (rank + 1) / 3);
    const auto blocks = io::combine(own, kElements, kBlock);
    whole.insert(whole.end(), blocks.whole.begin(), blocks.whole.end());
    sent.insert(sent.end(), blocks.parts.begin(), blocks.parts.end());
  }
  const auto together = io::combine(sent, kElements, kBlock).whole;
  whole.insert(whole.end(), together.begin(), together.end());
  EXPECT_THAT(whole, ::testing::UnorderedElementsAreArray(expected()));
}

TEST(BlockSums, ValuesThatWereNotTheSameGiveTwoSums) {
  std::vector<io::RangeSum> sums;
  add(sums, 1, 0, 4);
  add(sums, 1, 4, 10);
  sums.push_back(sums.back());
  sums.back().crc ^= 1;
  const auto blocks = io::combine(sums, kElements, kBlock);
  ASSERT_EQ(blocks.whole.size(), 2U);
  EXPECT_NE(blocks.whole[0].crc, blocks.whole[1].crc);
  EXPECT_TRUE(blocks.whole[0] == expected()[4] || blocks.whole[1] == expected()[4]);
}

TEST(BlockSums, ALastShorterBlockCounts) {
  EXPECT_EQ(io::blocks_of(0, 4), 0);
  EXPECT_EQ(io::blocks_of(4, 4), 1);
  EXPECT_EQ(io::blocks_of(5, 4), 2);
  EXPECT_EQ(io::blocks_of(1, std::int64_t{1} << 62), 1);
}

}  // namespace
}  // namespace llampi::test
