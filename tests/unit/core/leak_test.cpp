// SPDX-License-Identifier: Apache-2.0
// Objects that are given away for good.
#include "llampi/core/leak.hpp"

#include <gtest/gtest.h>

#include <memory>

namespace llampi::test {
namespace {

TEST(Leak, NeverDestroys) {
  const auto value = std::make_shared<int>(1);
  auto moved = value;
  leak(std::move(moved));
  EXPECT_EQ(moved, nullptr);
  EXPECT_EQ(value.use_count(), 2) << "the copy is still alive and out of reach";
  auto owner = std::make_unique<std::shared_ptr<int>>(value);
  leak(std::move(owner));
  EXPECT_EQ(owner, nullptr);
  EXPECT_EQ(value.use_count(), 3);
}

}  // namespace
}  // namespace llampi::test
