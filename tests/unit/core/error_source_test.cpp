// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/error_source.hpp"

#include <gtest/gtest.h>

namespace llampi::test {
namespace {

std::string sentence(const std::string& path, const std::string& error) {
  try {
    with_source("--weights ", path, [&] { throw UserError(error); });
  } catch (const UserError& caught) {
    return caught.what();
  }
  return "nothing";
}

TEST(ErrorSource, NamesTheOptionOfAPath) {
  for (const char* rest :
       {"", " is not an HDF5 file", ": no such file", "/config.json cannot be read", ", line 3: no"})
    EXPECT_EQ(sentence("m/mq", std::string("m/mq") + rest), std::string("--weights m/mq") + rest);
  EXPECT_EQ(sentence("m/", "m/config.json cannot be read"), "--weights m/config.json cannot be read");
}

TEST(ErrorSource, LeavesOtherPathsAlone) {
  for (const char* other :
       {"m/mq_questions.jsonl cannot be read", "m/mq.h5: no", "m/mq-2 is a folder", "m/mq2 is", "m/m"})
    EXPECT_EQ(sentence("m/mq", other), other);
  EXPECT_EQ(sentence("", "something else"), "something else");
}

}  // namespace
}  // namespace llampi::test
