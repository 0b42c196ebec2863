// SPDX-License-Identifier: Apache-2.0
// What a run does about a GPU that computes something else than the CPU. Any device can stand for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "llampi/comm/common_failure.hpp"
#include "llampi/comm/compute.hpp"
#include "llampi/device/device.hpp"
#include "llampi/selfcheck/gpu_check.hpp"
#include "llampi/train/train.hpp"
#include "support/mpi_test.hpp"

namespace llampi::test {
namespace {

using namespace selfcheck;

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

/// Computes all but SwiGLU, which it forgets or fails at.
std::unique_ptr<device::Device> broken_gpu(bool throws) {
  auto device = device::make_cpu_device(1);
  device->decorate([throws](const device::Operation& operation, const std::function<void()>& issue) {
    const auto* const swiglu = std::get_if<device::op::GateUpSwiglu>(&operation);
    if (swiglu != nullptr && throws) throw Error("gate_up_swiglu: an illegal memory access was encountered");
    issue();
    if (swiglu != nullptr)
      std::memset(swiglu->activated.data, 0, static_cast<std::size_t>(swiglu->activated.bytes()));
  });
  return device;
}

/// The last rank has `last`, the others a device that is right.
comm::Compute compute_with(std::unique_ptr<device::Device> last) {
  comm::World& world = test_world();
  comm::Compute compute;
  compute.mpi = &world;
  compute.host = device::make_cpu_device(1);
  compute.gpu = test_rank() == test_ranks() - 1 ? std::move(last) : device::make_cpu_device(1);
  compute.gpu_properties.name = "GPU X1";
  compute.gpu_properties.bus_id = "0000:17:00.0";
  return compute;
}

std::string refusal(comm::Compute compute) {
  try {
    selfcheck::check_gpus(test_world(), compute, {.dtype = DType::float32, .tf32 = false}, Log());
  } catch (const comm::CommonError& error) {  // on every rank, so that one may print it
    return error.what();
  }
  return "";
}

TEST(CheckGpus, GoesOnWhereAllComputeWhatTheCpuDoes) {
  EXPECT_EQ(refusal(compute_with(device::make_cpu_device(1))), "");
}

TEST(CheckGpus, NamesTheRankItsGpuAndWhatDiffers) {
  const std::string text = refusal(compute_with(broken_gpu(false)));
  EXPECT_THAT(text, HasSubstr(fmt::format("the GPU of rank {} (", test_ranks() - 1)));
  EXPECT_THAT(
      text,
      ContainsRegex(", GPU X1 0000:17:00.0\\) failed its self-check in float32: "
                    "output of model.layers.0.mlp: relative error [0-9.e-]+, and rounding "
                    "explains [0-9.e-]+ \\([0-9]+ more of [0-9]+ tensors differ too\\); leave its node out"));
}

TEST(CheckGpus, SaysWhatAGpuFailedAt) {
  EXPECT_THAT(
      refusal(compute_with(broken_gpu(true))),
      HasSubstr(
          "failed its self-check in float32: gate_up_swiglu: an illegal memory access was encountered; leave its node out"));
}

}  // namespace
}  // namespace llampi::test
