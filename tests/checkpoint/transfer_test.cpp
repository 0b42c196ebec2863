#include "checkpoint/transfer.hpp"

#include <gtest/gtest.h>

#include "llampi/core/error.hpp"

namespace llampi {
namespace {

/// Flattened indices of the blocks, in the order of a row-major walk.
std::vector<std::int64_t> elements_in(const std::vector<Hyperslab>& blocks, std::int64_t cols) {
  std::vector<std::int64_t> elements;
  for (const auto& block : blocks) {
    for (hsize_t row = 0; row < block.count[0]; ++row) {
      for (hsize_t col = 0; col < block.count[1]; ++col) {
        elements.push_back(static_cast<std::int64_t>(block.start[0] + row) * cols +
                           static_cast<std::int64_t>(block.start[1] + col));
      }
    }
  }
  return elements;
}

TEST(Hyperslabs, EveryRangeOfSmallTensors) {
  for (const auto& shape :
       std::vector<std::vector<std::int64_t>>{{5, 4}, {1, 7}, {7, 1}, {1, 1}, {2, 3}, {9}}) {
    const std::int64_t cols = shape.size() == 2 ? shape[1] : 1;
    const std::int64_t size = shape[0] * cols;
    for (std::int64_t begin = 0; begin <= size; ++begin) {
      for (std::int64_t end = begin; end <= size; ++end) {
        const auto blocks = hyperslabs(shape, begin, end - begin);
        EXPECT_LE(blocks.size(), 3U);
        std::vector<std::int64_t> expected;
        for (std::int64_t i = begin; i < end; ++i) expected.push_back(i);
        EXPECT_EQ(elements_in(blocks, cols), expected)
            << "[" << begin << ", " << end << ") of " << shape[0] << " rows";
      }
    }
  }
}

TEST(Hyperslabs, RowsBeyond32Bits) {
  const std::int64_t cols = 1 << 20, begin = 5 * cols + 3;
  const auto blocks = hyperslabs({1 << 14, cols}, begin, (std::int64_t{1} << 33) + 1);
  ASSERT_EQ(blocks.size(), 3U);
  EXPECT_EQ(blocks[1].count[0], (1U << 13) - 1);
  EXPECT_EQ(blocks[2].count[1], 4U);
}

TEST(Hyperslabs, OneOrTwoDimensions) {
  EXPECT_THROW(hyperslabs({}, 0, 1), Error);
  EXPECT_THROW(hyperslabs({1, 1, 1}, 0, 1), Error);
}

}  // namespace
}  // namespace llampi
