// SPDX-License-Identifier: Apache-2.0
// What holds for operations on any device: they can be decorated, and one that a device does not have is
// refused.
#include <gmock/gmock.h>

#include "device/execute_on.hpp"
#include "support/device_session.hpp"

namespace llampi::test {
namespace {

using ::testing::ElementsAre;

class Operations : public ::testing::Test {
 protected:
  Tensor add(float value) {
    const Tensor x = s_.upload({1, 4, {1, 2, 3, 4}});
    const Tensor y = s_.upload({1, 4, std::vector<double>(4, static_cast<double>(value))});
    device_->run(device::op::Add{.source = y, .destination = x});
    return x;
  }

  std::unique_ptr<device::Device> device_ = device::make_cpu_device(1);
  Session s_{*device_, DType::float32};
};

TEST_F(Operations, ADecoratorIsGivenEachOperation) {
  std::vector<std::string> names;
  device_->decorate([&](const device::Operation& operation, const std::function<void()>& issue) {
    names.emplace_back(device::name_of(operation));
    issue();
    names.emplace_back("issued");
  });
  const Tensor x = add(1);
  device_->run(device::op::Zero{.destination = x.slice(0, 1)});
  EXPECT_THAT(names, ElementsAre("add", "issued", "zero", "issued"));
  EXPECT_THAT(s_.download(x).data, ElementsAre(0, 3, 4, 5));
  device_->decorate({});
  add(1);
  EXPECT_EQ(names.size(), 4U);
}

TEST_F(Operations, ADecoratorMayLetThemFailOrLeaveThemOut) {
  device_->decorate([](const device::Operation&, const std::function<void()>&) { throw Error("lost"); });
  EXPECT_THROW(add(1), Error);
  device_->decorate([](const device::Operation&, const std::function<void()>&) {});
  EXPECT_THAT(s_.download(add(1)).data, ElementsAre(1, 2, 3, 4));
}

TEST_F(Operations, CommunicationMayAdvanceAfterEach) {
  int calls = 0;
  device_->set_progress([&] { ++calls; });
  add(1);
  EXPECT_EQ(calls, 1);
  device_->set_progress({});
}

TEST(ExecuteOn, RefusesWhatABackendDoesNotHave) {
  struct Backend {
    void execute(const device::op::Zero&) { ++zeros; }
    int zeros = 0;
  } backend;
  device::execute_on(backend, device::op::Zero{.destination = {}});
  EXPECT_EQ(backend.zeros, 1);
  try {
    device::execute_on(backend, device::op::Swiglu{.gate_up = {}, .activated = {}});
    FAIL() << "it was done";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "this device has no swiglu");
  }
}

}  // namespace
}  // namespace llampi::test
