// SPDX-License-Identifier: Apache-2.0
// Which parts of files nodes compare.
#include <gmock/gmock.h>

#include "train/same_files.hpp"

namespace llampi::test {
namespace {

using namespace train;

constexpr std::int64_t kBlock = kCompareBlockBytes;

TEST(BlocksToCompare, AreAllIfThereAreFew) {
  const std::vector<FileBlock> all = {
      {0, 0, kBlock}, {0, kBlock, kBlock}, {0, 2 * kBlock, 1}, {2, 0, 7}, {3, 0, kBlock}};
  EXPECT_EQ(blocks_to_compare({2 * kBlock + 1, 0, 7, kBlock}, 5), all);
  EXPECT_EQ(blocks_to_compare({2 * kBlock + 1, 0, 7, kBlock}, 1000), all);
}

TEST(BlocksToCompare, AreNoneOfNothing) {
  EXPECT_TRUE(blocks_to_compare({}, 5).empty());
  EXPECT_TRUE(blocks_to_compare({0, 0}, 5).empty());
}

TEST(BlocksToCompare, AreSpreadEvenlyWithBothEndsOfEachFile) {
  const std::int64_t first = 100, second = 31;
  for (const std::int64_t most : {1, 7, 50, 130}) {
    const auto blocks = blocks_to_compare({first * kBlock, second * kBlock - 5}, most);
    EXPECT_THAT(blocks, ::testing::IsSupersetOf(std::vector<FileBlock>{
                            {0, 0, kBlock},
                            {0, (first - 1) * kBlock, kBlock},
                            {1, 0, kBlock},
                            {1, (second - 1) * kBlock, kBlock - 5},
                        }));
    EXPECT_LE(std::ssize(blocks), most + 4);
    const std::int64_t stride = (first + second + most - 1) / most;
    for (std::size_t i = 1; i < blocks.size(); ++i) {
      if (blocks[i].file != blocks[i - 1].file) continue;
      EXPECT_LE(blocks[i].begin - blocks[i - 1].begin, stride * kBlock) << most;
    }
  }
}

}  // namespace
}  // namespace llampi::test
