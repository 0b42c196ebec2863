// SPDX-License-Identifier: Apache-2.0
#include "llampi/checkpoint/staging.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "llampi/core/error.hpp"
#include "llampi/core/int8_blocks.hpp"
#include "support/checkpoint_sample.hpp"

namespace llampi::test {
namespace {

using namespace checkpoint;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Staging, PartsFollowEachOtherAndFitTheBuffer) {
  for (const std::int64_t elements : {0, 1, 4, 5, 6, 10, 11}) {
    std::vector<float> values(static_cast<std::size_t>(elements));
    const Staging staging(sample_device(), 5);
    std::int64_t end = 0;
    staging.in_parts(tensor(values.data(), 1, elements), [&](const Tensor& part, std::int64_t begin) {
      EXPECT_EQ(begin, end);
      EXPECT_EQ(part.as<float>(), values.data() + begin);
      EXPECT_TRUE(part.elements() >= 1 && part.elements() <= 5) << part.elements();
      end += part.elements();
    });
    EXPECT_EQ(end, elements);
  }
}

TEST(Staging, NothingOfAnEmptyTensor) {
  const Staging staging(sample_device(), 5);
  staging.in_parts(Tensor{}, [](const Tensor&, std::int64_t) { ADD_FAILURE(); });
}

/// What becomes of `values` that are stored in a tensor and fetched again.
std::vector<float> passed(DType dtype, const std::vector<float>& values) {
  Staging staging(sample_device(), 16);
  std::vector<std::byte> memory(values.size() * static_cast<std::size_t>(size_of(dtype)));
  const Tensor part{memory.data(), dtype, 1, std::ssize(values)};
  std::copy(values.begin(), values.end(), staging.room_for(part));
  staging.store(part);
  if (dtype != DType::float32) std::fill_n(staging.room_for(part), values.size(), -1.0F);
  const float* fetched = staging.fetch(part);
  return {fetched, fetched + values.size()};
}

// In the middle between two neighbours the even one wins, and the sum of 1 and the last place of float32 is
// beyond the middle.
TEST(Staging, RoundsToNearestEven) {
  EXPECT_EQ(passed(DType::float32, {1 + 0x1p-23F, -0x1p-149F, kInfinity}),
            (std::vector<float>{1 + 0x1p-23F, -0x1p-149F, kInfinity}));
  EXPECT_EQ(
      passed(DType::bfloat16, {1, 1 + 0x1p-8F, 1 + 0x3p-8F, 1 + 0x1p-8F + 0x1p-23F, -0x1.FFp127F, 0x3p-134F}),
      (std::vector<float>{1, 1, 1 + 0x1p-6F, 1 + 0x1p-7F, -kInfinity, 0x1p-132F}));
  EXPECT_EQ(passed(DType::float16, {1, 1 + 0x1p-11F, 1 + 0x3p-11F, 1 + 0x1p-11F + 0x1p-23F, 65519, 65520,
                                    0x1p-25F, 0x3p-25F}),
            (std::vector<float>{1, 1, 1 + 0x1p-9F, 1 + 0x1p-10F, 65504, kInfinity, 0, 0x1p-23F}));
}

// Several parts, each of whole blocks.
TEST(Staging, RoundsToBlocksInParts) {
  constexpr std::int64_t kElements = 5 * kInt8BlockElements;
  Staging staging(sample_device(), 2 * kInt8BlockElements);
  std::vector<float> values;
  for (std::int64_t i = 0; i < kElements; ++i) values.push_back(static_cast<float>((i * 37 % 101) - 50) / 7);
  std::vector<Int8Block> blocks(kElements / kInt8BlockElements), expected(blocks.size());
  to_int8_blocks(values.data(), kElements, expected.data());
  int parts = 0;
  staging.in_parts(
      {blocks.data(), DType::int8_blocks, 1, kElements}, [&](const Tensor& part, std::int64_t begin) {
        std::copy_n(values.begin() + begin, part.elements(), staging.room_for(part));
        staging.store(part);
        std::vector<float> rounded(static_cast<std::size_t>(part.elements()));
        from_int8_blocks(expected.data() + begin / kInt8BlockElements, part.elements(), rounded.data());
        EXPECT_TRUE(std::equal(rounded.begin(), rounded.end(), staging.fetch(part)));
        ++parts;
      });
  EXPECT_EQ(parts, 3);
  EXPECT_EQ(std::memcmp(blocks.data(), expected.data(), blocks.size() * sizeof(Int8Block)), 0);
  const Staging cuts(sample_device(), 100);
  EXPECT_THROW(
      cuts.in_parts({blocks.data(), DType::int8_blocks, 1, kElements}, [](const Tensor&, std::int64_t) {}),
      Error);
}

}  // namespace
}  // namespace llampi::test
