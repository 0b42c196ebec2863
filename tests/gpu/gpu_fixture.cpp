// SPDX-License-Identifier: Apache-2.0
#include "gpu/gpu_fixture.hpp"

namespace llampi::test {

std::unique_ptr<GpuTest::Suite> GpuTest::suite_;

void GpuTest::SetUpTestSuite() {
  suite_ = std::make_unique<Suite>();
  suite_->device = make_gpu({.attention = device::GpuAttention::native}, suite_->why);
  if (!suite_->device) return;
  const std::int64_t bytes = suite_->device->sizes().shared_workspace();
  suite_->workspace = suite_->device->allocate(bytes);
  suite_->device->set_workspace({suite_->workspace.data(), DType::int32, 1, bytes / 4});
}

void GpuTest::TearDownTestSuite() { suite_.reset(); }

void GpuTest::SetUp() {
  if (!suite_->device) GTEST_SKIP() << "no GPU to test: " << suite_->why;
}

void GpuTest::TearDown() { work_orders().front().set(); }

}  // namespace llampi::test
