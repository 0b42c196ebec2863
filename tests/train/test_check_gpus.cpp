// SPDX-License-Identifier: Apache-2.0
// What a run does about a GPU that computes something else than the CPU. Any device can stand for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/cpu/cpu_device.hpp"
#include "llampi/comm/compute.hpp"
#include "llampi/selfcheck/gpu_check.hpp"
#include "llampi/train/train.hpp"
#include "support/mpi_test.hpp"

namespace llampi::selfcheck {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

/// Computes all but SwiGLU, which it forgets or fails at.
class BrokenGpu final : public device::CpuDevice {
 public:
  explicit BrokenGpu(bool throws)
      : device::CpuDevice(1, *device::available_kernels().front()), throws_(throws) {}
  void gate_up_swiglu(Tensor x, Tensor weight, Tensor gate_up, Tensor activated) override {
    if (throws_) throw Error("gate_up_swiglu: an illegal memory access was encountered");
    device::CpuDevice::gate_up_swiglu(x, weight, gate_up, activated);
    device::CpuDevice::zero(activated);
  }

 private:
  bool throws_;
};

/// The last rank has `last`, the others a device that is right.
comm::Compute compute_with(std::unique_ptr<device::Device> last) {
  comm::World& world = test_world();
  comm::Compute compute;
  compute.mpi = &world;
  compute.host = device::make_cpu_device(1);
  compute.gpu = world.rank() == world.size() - 1 ? std::move(last) : device::make_cpu_device(1);
  compute.gpu_properties.name = "GPU X1";
  compute.gpu_properties.bus_id = "0000:17:00.0";
  return compute;
}

std::string refusal(comm::Compute compute) {
  try {
    selfcheck::check_gpus(test_world(), compute, DType::float32, false, 16, Log());
  } catch (const comm::CommonError& error) {  // on every rank, so that one may print it
    return error.what();
  }
  return "";
}

TEST(CheckGpus, GoesOnWhereAllComputeWhatTheCpuDoes) {
  EXPECT_EQ(refusal(compute_with(device::make_cpu_device(1))), "");
}

TEST(CheckGpus, NamesTheRankItsGpuAndWhatDiffers) {
  const std::string text = refusal(compute_with(std::make_unique<BrokenGpu>(false)));
  EXPECT_THAT(text, HasSubstr(fmt::format("the GPU of rank {} (", test_world().size() - 1)));
  EXPECT_THAT(text,
              ContainsRegex(", GPU X1 0000:17:00.0\\) does not compute in float32 what the CPU does: "
                            "output of model.layers.0.mlp differs by [0-9.e-]+ of its norm, and rounding "
                            "explains [0-9.e-]+ \\([0-9]+ more of [0-9]+ tensors differ too\\); use cpu as"));
}

TEST(CheckGpus, SaysWhatAGpuFailedAt) {
  EXPECT_THAT(
      refusal(compute_with(std::make_unique<BrokenGpu>(true))),
      HasSubstr("what the CPU does: gate_up_swiglu: an illegal memory access was encountered; use cpu"));
}

}  // namespace
}  // namespace llampi::selfcheck
