// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "llampi/core/philox.hpp"

namespace llampi::test {
namespace {

// Known answers published with the algorithm (Random123's kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, GivesThePublishedNumbers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, DependsOnSeedPurposeAndIndex) {
  std::set<std::uint64_t> seen;
  for (const std::uint64_t seed : {0, 1}) {
    for (const auto* purpose : {"a", "b"}) {
      const RandomStream stream(seed, purpose);
      for (std::uint64_t i = 0; i < 100; ++i) {
        EXPECT_EQ(stream.bits(i), stream.bits(i));
        seen.insert(stream.bits(i));
      }
    }
  }
  EXPECT_EQ(seen.size(), 400U);
}

TEST(RandomStream, NormalHasTheMomentsOfANormal) {
  const RandomStream stream(0, "moments");
  constexpr int kCount = 200000;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = stream.normal(static_cast<std::uint64_t>(i));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  // Five standard deviations of each mean: var(x) = 1, var(x^2) = 2, var(x^4) = 96.
  const double s = 5 / std::sqrt(kCount);
  EXPECT_NEAR(sum / kCount, 0, s);
  EXPECT_NEAR(squares / kCount, 1, s * std::sqrt(2));
  EXPECT_NEAR(fourth / kCount, 3, s * std::sqrt(96));
}

}  // namespace
}  // namespace llampi::test
