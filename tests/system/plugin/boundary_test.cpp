// SPDX-License-Identifier: Apache-2.0
// What crosses the boundary between program and plugin: objects, symbols and exceptions, which keep their
// types although each side has its own, hidden copy of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "llampi/device/device.hpp"
#include "llampi/device/gpu.hpp"

namespace llampi::test {
namespace {

const device::GpuLibrary& fake() {
  setenv("LLAMPI_PLUGIN_DIR", FAKE_PLUGINS "/fake", 1);
  std::string why;
  const device::GpuLibrary* const library = device::gpu_library(why);
  if (library == nullptr) throw std::runtime_error(why);
  return *library;
}

device::GpuOptions gpu(int index) {
  device::GpuOptions options;
  options.gpu = index;
  return options;
}

TEST(Boundary, IsLoadedOnce) {
  std::string why = "not yet asked";
  const device::GpuLibrary* const first = &fake();
  EXPECT_EQ(device::gpu_library(why), first);
  EXPECT_EQ(why, "");
}

TEST(Boundary, PassesValues) {
  const std::vector<device::GpuProperties> gpus = fake().gpus();
  ASSERT_EQ(gpus.size(), 1U);
  EXPECT_EQ(gpus[0].name, "Fake GPU");
  EXPECT_EQ(gpus[0].bus_id, "0000:01:00.0");
  EXPECT_NE(fake().symbol("llampi_gpu_library"), nullptr);
}

TEST(Boundary, PassesExceptions) {
  // Each is caught as what it is, and not by a handler of something narrower.
  const auto caught_as = [](int index) -> std::string {
    try {
      fake().make_device(gpu(index));
    } catch (const UserError& error) {
      return std::string("UserError: ") + error.what();
    } catch (const CallError& error) {
      return std::string("CallError: ") + error.what();
    } catch (const Error& error) {
      return std::string("Error: ") + error.what();
    } catch (const std::bad_alloc&) {
      return "bad_alloc";
    }
    return "nothing";
  };
  EXPECT_EQ(caught_as(0), "UserError: GPU 0 is not for you; take another");
  EXPECT_THAT(caught_as(1), ::testing::StartsWith("CallError: fakeCall failed: no reason ("));
  EXPECT_THAT(caught_as(2), ::testing::StartsWith("Error: internal error: a fake ("));
  EXPECT_EQ(caught_as(3), "bad_alloc");
  EXPECT_EQ(caught_as(4), "nothing");
}

TEST(Boundary, DerivedExceptionsAreTheirBases) {
  EXPECT_THROW(fake().make_device(gpu(0)), Error);
  EXPECT_THROW(fake().make_device(gpu(1)), std::runtime_error);
}

}  // namespace
}  // namespace llampi::test
