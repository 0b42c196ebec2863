// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "llampi/core/error.hpp"

namespace llampi::test {

/// `work` throws UserError with exactly this sentence.
template <class Work>
void expect_user_error(const Work& work, const std::string& sentence) {
  try {
    work();
    ADD_FAILURE() << "nothing was thrown; expected: " << sentence;
  } catch (const UserError& error) {
    EXPECT_EQ(error.what(), sentence);
  }
}

}  // namespace llampi::test
