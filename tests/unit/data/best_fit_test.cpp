// SPDX-License-Identifier: Apache-2.0
#include "data/best_fit.hpp"

#include <numeric>
#include <random>

#include "support/files.hpp"

namespace llampi::test {
namespace {

using ::testing::ElementsAre;
using Lengths = std::vector<std::uint32_t>;

/// Each item once, no item over the end of a row unless it is longer than one.
void expect_valid(const data::Packing& packing, const Lengths& lengths, std::uint32_t capacity) {
  ASSERT_EQ(packing.items.size(), lengths.size());
  Lengths sorted = packing.items;
  std::sort(sorted.begin(), sorted.end());
  for (std::uint32_t i = 0; i < sorted.size(); ++i) ASSERT_EQ(sorted[i], i);
  std::uint32_t i = 0;
  for (const auto end : packing.ends) {
    ASSERT_LT(i, end) << "an empty bin";
    std::uint32_t filled = lengths[packing.items[i++]];  // only the first may be longer than a row
    const auto rows = (filled + capacity - 1) / capacity;
    for (; i < end; ++i) {
      ASSERT_LE(lengths[packing.items[i]], capacity);
      filled += lengths[packing.items[i]];
    }
    ASSERT_LE(filled, rows * capacity);
  }
  ASSERT_EQ(i, lengths.size());
}

TEST(BestFit, TakesTheFullestBinThatHasSpace) {
  // 7 and 6 open bins with 3 and 4 left; 4 goes to the second, 3 to the first, the 2 opens one.
  const Lengths lengths{2, 6, 3, 7, 4};
  const auto packing = data::best_fit(lengths, 10);
  EXPECT_THAT(packing.items, ElementsAre(0, 1, 4, 2, 3));
  EXPECT_THAT(packing.ends, ElementsAre(1, 3, 5));
  expect_valid(packing, lengths, 10);
}

TEST(BestFit, FillsTheRestOfLongerItems) {
  // 25 takes two rows and half of a third, which the 5 fills; the 20 leaves nothing.
  const Lengths lengths{5, 25, 8, 20};
  const auto packing = data::best_fit(lengths, 10);
  EXPECT_THAT(packing.items, ElementsAre(1, 0, 2, 3));
  EXPECT_THAT(packing.ends, ElementsAre(2, 3, 4));
  expect_valid(packing, lengths, 10);
}

TEST(BestFit, TakesNothingAndOne) {
  EXPECT_TRUE(data::best_fit({}, 10).ends.empty());
  EXPECT_THAT(data::best_fit(Lengths{10}, 10).ends, ElementsAre(1));
}

TEST(BestFit, NeedsHardlyMoreBinsThanTheTokensDo) {
  // Lengths of conversations are roughly log-normal: here a median of 400 tokens, and 2 % longer than a row.
  constexpr unsigned kSeed = 11;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  std::lognormal_distribution<double> draw(std::log(400.0), 1.1);
  for (const std::uint32_t capacity : {1024U, 4096U}) {
    Lengths lengths;
    for (int i = 0; i < 20'000; ++i)
      lengths.push_back(1 + static_cast<std::uint32_t>(std::min(draw(random), 20'000.0)));
    const auto packing = data::best_fit(lengths, capacity);
    expect_valid(packing, lengths, capacity);
    std::uint64_t rows = 0;
    std::uint32_t i = 0;
    for (const auto end : packing.ends) {
      std::uint64_t filled = 0;
      for (; i < end; ++i) filled += lengths[packing.items[i]];
      rows += (filled + capacity - 1) / capacity;
    }
    const auto tokens = std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0});
    EXPECT_GT(static_cast<double>(tokens) / static_cast<double>(rows * capacity), 0.99) << capacity;
  }
}

}  // namespace
}  // namespace llampi::test
