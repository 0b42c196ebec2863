// SPDX-License-Identifier: Apache-2.0
// The head of a GPU that leaves out rows without a label, in the workspace of all rows.
#include "device/cuda/loss_sizes.hpp"

#include <gtest/gtest.h>

#include "llampi/device/operations.hpp"

namespace llampi::test {
namespace {

using device::cuda::head_loss_bytes;
using device::cuda::head_rows;
using device::cuda::packed_head;

/// Calls `check(rows, tokens, hidden, vocabulary, dtype, logits_bytes)`.
template <class Check>
void for_many_shapes(const Check& check) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const std::int64_t logits_bytes : {device::kLogitsBytes, 16 * device::kLogitsBytes}) {
      for (const std::int64_t hidden : {64, 1024, 4096}) {
        for (const std::int64_t vocabulary : {258, 512, 32'000, 128'256}) {
          for (const std::int64_t tokens : {64, 1'000, 8'192, 65'536}) {
            for (int quarters = 1; quarters < 4; ++quarters)
              check(tokens * quarters / 4, tokens, hidden, vocabulary, dtype, logits_bytes);
          }
        }
      }
    }
  }
}

// Each chunk reads and adds to the gradient of the weight: with more of them, to leave rows out would be slower.
TEST(PackedHead, HasNoMoreChunksThanAllRowsHave) {
  int packed = 0, all = 0;
  for_many_shapes([&](std::int64_t rows, std::int64_t tokens, std::int64_t hidden, std::int64_t vocabulary,
                      DType dtype, std::int64_t logits_bytes) {
    const auto parts = packed_head(rows, tokens, hidden, vocabulary, dtype, logits_bytes);
    ++(parts.chunk > 0 ? packed : all);
    if (parts.chunk == 0) return;
    EXPECT_LE(ceil_div(rows, parts.chunk),
              ceil_div(tokens, head_rows(tokens, vocabulary, dtype, logits_bytes)))
        << rows << " of " << tokens << " rows, hidden " << hidden << ", vocabulary " << vocabulary;
  });
  EXPECT_GT(packed, 100);
  EXPECT_GT(all, 10);
}

TEST(PackedHead, IsForAllOfLlama) {
  for (int quarters = 1; quarters < 4; ++quarters)
    EXPECT_GT(packed_head(2048 * quarters, 8192, 4096, 128'256, DType::bfloat16, device::kLogitsBytes).chunk,
              0);
}

TEST(PackedHead, LiesInTheWorkspace) {
  for_many_shapes([](std::int64_t rows, std::int64_t tokens, std::int64_t hidden, std::int64_t vocabulary,
                     DType dtype, std::int64_t logits_bytes) {
    const auto parts = packed_head(rows, tokens, hidden, vocabulary, dtype, logits_bytes);
    if (parts.chunk == 0) return;
    EXPECT_LE(parts.labels + rows * size_of(DType::int32),
              head_loss_bytes(tokens, vocabulary, dtype, logits_bytes))
        << rows << " of " << tokens << " rows, hidden " << hidden << ", vocabulary " << vocabulary;
  });
}

}  // namespace
}  // namespace llampi::test
