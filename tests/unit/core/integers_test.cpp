// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/integers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llampi::test {
namespace {

using ::testing::ElementsAre;

TEST(Integers, HaveAllTheirDivisorsInOrder) {
  EXPECT_THAT(divisors(1), ElementsAre(1));
  EXPECT_THAT(divisors(7), ElementsAre(1, 7));
  EXPECT_THAT(divisors(49), ElementsAre(1, 7, 49));
  EXPECT_THAT(divisors(360), ElementsAre(1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15, 18, 20, 24, 30, 36, 40, 45, 60,
                                         72, 90, 120, 180, 360));
  for (std::int64_t number = 1; number <= 300; ++number) {
    std::vector<std::int64_t> expected;
    for (std::int64_t n = 1; n <= number; ++n) {
      if (number % n == 0) expected.push_back(n);
    }
    EXPECT_EQ(divisors(number), expected) << number;
  }
}

TEST(Integers, HaveTheirDivisorsSoon) {
  EXPECT_THAT(divisors(999999937), ElementsAre(1, 999999937)) << "a prime number";
  const auto of_a_power = divisors(std::int64_t{1} << 62);
  EXPECT_EQ(of_a_power.size(), 63U);
  EXPECT_EQ(of_a_power.back(), std::int64_t{1} << 62);
}

}  // namespace
}  // namespace llampi::test
