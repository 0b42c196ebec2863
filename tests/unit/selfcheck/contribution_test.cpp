// SPDX-License-Identifier: Apache-2.0
// What ranks contribute to the collectives that are checked tells them apart.
#include <gtest/gtest.h>

#include <cstdint>

#include "selfcheck/collectives_check.hpp"

namespace llampi::test {
namespace {

using selfcheck::contribution;

constexpr std::int64_t kElements = 1000;

/// Of the elements, the share in which two sums of contributions differ.
template <class One, class Other>
double share_that_differs(const One& one, const Other& other) {
  int differing = 0;
  for (std::int64_t element = 0; element < kElements; ++element)
    differing += static_cast<int>(one(element) != other(element));
  return differing / static_cast<double>(kElements);
}

TEST(Contribution, OfARankThatIsMissingOrTakenForAnotherIsMissed) {
  for (int rank = 0; rank < 24; ++rank) {
    const auto own = [&](std::int64_t element) { return contribution(rank, element); };
    EXPECT_NEAR(share_that_differs(own, [](std::int64_t) { return 0.0; }), 2 / 3.0, 0.06) << rank;
    for (int other = 0; other < rank; ++other) {
      const auto of_other = [&](std::int64_t element) { return contribution(other, element); };
      EXPECT_NEAR(share_that_differs(own, of_other), 2 / 3.0, 0.06) << rank << ", " << other;
    }
  }
}

TEST(Contribution, OfSeveralRanksDoNotCancel) {
  for (const int ranks : {2, 3, 4, 6, 8, 16, 24}) {
    const auto all = [&](std::int64_t element) {
      double sum = 0;
      for (int rank = 0; rank < ranks; ++rank) sum += contribution(rank, element);
      return sum;
    };
    EXPECT_GT(share_that_differs(all, [](std::int64_t) { return 0.0; }), 0.6) << ranks;
  }
}

}  // namespace
}  // namespace llampi::test
