// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llampi::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Error, ANullByteDoesNotCutItsMessageOff) {
  EXPECT_STREQ(UserError(std::string("a\0b", 3)).what(), "a?b");
}

TEST(Error, NamesAPlaceInTheSourceAndNotWhereItWasBuilt) {
  EXPECT_THAT(
      CallError("call", "reason").what(),
      AllOf(StartsWith("call failed: reason (tests/unit/core/error_test.cpp:"), Not(HasSubstr("(/"))));
}

}  // namespace
}  // namespace llampi::test
