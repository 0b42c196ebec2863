// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/int8_blocks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "llampi/core/philox.hpp"

namespace llampi::test {
namespace {

constexpr std::int64_t kElements = kInt8BlockElements;

std::vector<Int8Block> blocks_of(const std::vector<float>& values) {
  std::vector<Int8Block> blocks(values.size() / kElements);
  to_int8_blocks(values.data(), std::ssize(values), blocks.data());
  return blocks;
}

std::vector<float> values_of(const std::vector<Int8Block>& blocks) {
  std::vector<float> values(blocks.size() * kElements);
  from_int8_blocks(blocks.data(), std::ssize(values), values.data());
  return values;
}

/// Blocks of normal numbers, of magnitudes from 2^-100 to 2^100.
std::vector<float> random_values() {
  const RandomStream random(1, "int8 blocks");
  std::vector<float> values;
  for (int block = 0; block < 201; ++block) {
    for (std::int64_t i = 0; i < kElements; ++i) {
      const auto at = static_cast<std::uint64_t>(block * kElements + i);
      values.push_back(static_cast<float>(std::ldexp(random.normal(at), block - 100)));
    }
  }
  return values;
}

float largest_of(const std::vector<float>& values, std::size_t block) {
  float most = 0;
  for (std::size_t i = block * kElements; i < (block + 1) * kElements; ++i)
    most = std::max(most, std::abs(values[i]));
  return most;
}

// The definition, in float64. A quotient in float32 is off by at most 2^-24 of 127, so that an integer may be another one than
// here only within 2^-17 of the middle of two.
TEST(Int8Blocks, HaveTheNearestIntegers) {
  const auto values = random_values();
  const auto blocks = blocks_of(values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Int8Block& block = blocks[i / kElements];
    ASSERT_EQ(block.scale, largest_of(values, i / kElements) / 127.0F);
    const double quotient = static_cast<double>(values[i]) / static_cast<double>(block.scale);
    const double error = std::abs(block.values[i % kElements] - quotient);
    ASSERT_LE(error, 0.5 + 0x1p-17) << i;
    ASSERT_LE(std::abs(block.values[i % kElements]), 127);
  }
}

TEST(Int8Blocks, ChangeAnElementByHalfAScale) {
  const auto values = random_values();
  const auto blocks = blocks_of(values);
  const auto back = values_of(blocks);
  double largest = 0, squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double scale = blocks[i / kElements].scale;
    // Half a scale, and what float32 rounds: of the quotient, of the scale times 127 and of the product, 2^-24 of 127 each.
    const double error = std::abs(static_cast<double>(back[i]) - static_cast<double>(values[i])) / scale;
    ASSERT_LE(error, 0.5 + 3 * 127 * 0x1p-24) << i;
    largest = std::max(largest, error);
    squares += error * error;
    ASSERT_EQ(back[i],
              static_cast<float>(blocks[i / kElements].values[i % kElements]) * blocks[i / kElements].scale);
  }
  EXPECT_GT(largest, 0.49);
  // Errors are spread evenly over [-1/2, 1/2], of which the mean square is 1/12.
  EXPECT_NEAR(squares / static_cast<double>(values.size()), 1.0 / 12, 0.005);
}

TEST(Int8Blocks, RoundTiesToEven) {
  std::vector<float> values(kElements, 0.0F);
  values[0] = 127;  // a scale of 1
  const float ties[] = {0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, 126.5F, -126.5F, 0.49999997F, 2.5000002F};
  std::ranges::copy(ties, values.begin() + 1);
  const auto blocks = blocks_of(values);
  EXPECT_EQ(blocks[0].scale, 1);
  const std::vector<int> integers(blocks[0].values, blocks[0].values + 11);
  EXPECT_EQ(integers, (std::vector<int>{127, 0, 2, 2, 0, -2, -2, 126, -126, 0, 3}));
}

TEST(Int8Blocks, KeepIntegersAndSigns) {
  std::vector<float> values(kElements);
  for (std::int64_t i = 0; i < kElements; ++i)
    values[static_cast<std::size_t>(i)] = static_cast<float>(i % 2 == 0 ? i : -i) * 0x1p-9F;
  EXPECT_EQ(values_of(blocks_of(values)), values);
}

TEST(Int8Blocks, AreIndependent) {
  auto values = random_values();
  const auto all = blocks_of(values);
  for (std::size_t b = 0; b < all.size(); ++b) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(b * kElements);
    const auto alone = blocks_of({begin, begin + kElements});
    ASSERT_EQ(alone[0].scale, all[b].scale);
    ASSERT_TRUE(std::ranges::equal(alone[0].values, all[b].values));
  }
}

TEST(Int8Blocks, OfZerosOfTinyNumbersAndOfNoNumbers) {
  std::vector<float> values(4 * kElements, 0.0F);
  values[kElements] = std::numeric_limits<float>::denorm_min();
  values[kElements + 1] = 126 * std::numeric_limits<float>::min();  // of a scale that would be subnormal
  values[2 * kElements] = std::numeric_limits<float>::infinity();
  values[3 * kElements + 5] = std::numeric_limits<float>::quiet_NaN();
  const auto back = values_of(blocks_of(values));
  for (std::size_t i = 0; i < 2 * kElements; ++i) ASSERT_EQ(back[i], 0) << i;
  for (std::size_t i = 2 * kElements; i < 4 * kElements; ++i) ASSERT_TRUE(std::isnan(back[i])) << i;
}

TEST(Int8Blocks, AreSlicedBetweenBlocks) {
  std::vector<Int8Block> blocks(3);
  const Tensor all{blocks.data(), DType::int8_blocks, 1, 3 * kElements};
  EXPECT_EQ(all.bytes(), 3 * 132);
  EXPECT_EQ(all.slice(kElements, 3 * kElements).data, &blocks[1]);
  EXPECT_EQ(all.slice(kElements, 2 * kElements).bytes(), 132);
  EXPECT_THROW(all.slice(kElements / 2, kElements), Error);
  EXPECT_THROW(static_cast<void>(size_of(DType::int8_blocks)), Error);
}

}  // namespace
}  // namespace llampi::test
