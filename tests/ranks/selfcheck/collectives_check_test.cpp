// SPDX-License-Identifier: Apache-2.0
#include "selfcheck/collectives_check.hpp"

#include <gtest/gtest.h>

#include "support/mpi_test.hpp"

namespace llampi::test {
namespace {

TEST(CollectivesCheck, FindsNoDifferenceOnNumbersOfRanksThatDivideNothing) {
  const auto device = device::make_cpu_device(1);
  const auto compared = selfcheck::check_collectives(test_world(), *device);
  EXPECT_EQ(compared.size(), 6U);  // three collectives in two dtypes
  for (const auto& tensor : compared) EXPECT_EQ(tensor.error, 0) << tensor.name;
}

}  // namespace
}  // namespace llampi::test
