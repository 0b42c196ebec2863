// SPDX-License-Identifier: Apache-2.0
#include "support/shared_folder.hpp"

#include <gtest/gtest.h>

#include "llampi/comm/comm.hpp"

namespace llampi::test {

SharedFolder::SharedFolder() {
  if (test_world().rank() == 0) folder_.emplace();
  path_ = test_world().broadcast(folder_ ? folder_->path().string() : "", 0);
}

SharedFolder::~SharedFolder() { test_world().barrier(); }

void on_rank_0(const std::function<void()>& work) {
  if (test_world().rank() == 0) work();
  test_world().barrier();
}

void expect_alike(const std::string& message) {
  for (const auto& other : test_world().all_gather(message)) EXPECT_EQ(other, message) << "the ranks differ";
}

}  // namespace llampi::test
