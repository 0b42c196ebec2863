// SPDX-License-Identifier: Apache-2.0
// Tests that run on a GPU, and on the emulated one where there is none: one source, built twice.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llampi/device/device.hpp"
#include "llampi/device/gpu.hpp"

namespace llampi::test {

/// Each is defined twice: for the plugin's device in plugin.cpp, for the emulated one in emulated.cpp.
///
/// Null if there is no GPU to test; `why` then says what is missing.
std::unique_ptr<device::Device> make_gpu(const device::GpuOptions& options, std::string& why);
/// The orders in which a GPU may work that the test can ask for: on a real one, the one that comes.
/// Afterwards the usual order holds again.
struct WorkOrder {
  std::string name;
  std::function<void()> set;
};
std::vector<WorkOrder> work_orders();
/// Those in which a test runs that runs in several. With --gtest_also_run_disabled_tests, which long tests have, all of them; else
/// not the first, in which all other tests run.
inline std::vector<WorkOrder> compared_orders() {
  std::vector<WorkOrder> orders = work_orders();
  if (orders.size() > 1 && !GTEST_FLAG_GET(also_run_disabled_tests)) orders.erase(orders.begin());
  return orders;
}
/// Whether sums of products are float32's, as on the emulated GPU: tensor cores keep fewer bits of them in 8 bits.
bool sums_are_float32();
/// Whether it multiplies with scales of blocks: Hopper does, and what is emulated.
bool has_block_products();

/// One device for all tests of a suite, with its shared workspace. Skipped where there is no GPU.
class GpuTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite();
  void SetUp() override;
  void TearDown() override;
  static device::Device& device() { return *suite_->device; }

 private:
  struct Suite {
    std::string why;
    std::unique_ptr<device::Device> device;
    device::Memory workspace;
  };
  static std::unique_ptr<Suite> suite_;
};

inline constexpr DType kGpuTypes[] = {DType::float32, DType::bfloat16, DType::float16};

}  // namespace llampi::test
