// SPDX-License-Identifier: Apache-2.0
// Text in memory, part by part.
#include "llampi/core/split.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llampi::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Split, HasWhatIsBetweenSeparators) {
  EXPECT_THAT(split("", ','), IsEmpty());
  EXPECT_THAT(split("a", ','), ElementsAre("a"));
  EXPECT_THAT(split("a,,bc", ','), ElementsAre("a", "", "bc"));
  EXPECT_THAT(split(",a,", ','), ElementsAre("", "a"));
  EXPECT_THAT(split(",,", ','), ElementsAre("", ""));
}

TEST(Split, HasLinesThatEndOrNot) {
  EXPECT_THAT(lines_of("one\n\ntwo\r\n"), ElementsAre("one", "", "two\r"));
  EXPECT_THAT(lines_of("one\ntwo"), ElementsAre("one", "two"));
}

TEST(Trimmed, HasNoSpacesAtItsEnds) {
  EXPECT_EQ(trimmed(" \t a b\r\n"), "a b");
  EXPECT_EQ(trimmed("a"), "a");
  EXPECT_EQ(trimmed(" \n"), "");
  EXPECT_EQ(trimmed(""), "");
  EXPECT_EQ(trimmed("\t a ", " "), "\t a");
}

}  // namespace
}  // namespace llampi::test
