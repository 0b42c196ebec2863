// SPDX-License-Identifier: Apache-2.0
// Products in 8 bits that a GPU does not have are refused with its name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "device/cuda/cuda_device.hpp"

namespace llampi::test {
namespace {

using namespace device;

using ::testing::HasSubstr;

/// What a GPU of compute capability `major`.0 says of [128, 128] = [128, 128] [128, 128]^T.
std::string refusal(const char* major, Fp8Scaling scaling) {
  ::setenv("EMULATED_GPU_MAJOR", major, 1);
  cuda::CudaDevice gpu({.attention = GpuAttention::native});
  ::unsetenv("EMULATED_GPU_MAJOR");
  const Memory memory = gpu.allocate(128 * 128 * 4);
  const Tensor matrix{memory.data(), DType::float8_e4m3fn, 128, 128};
  const auto shape = fp8_scale_shape(scaling, 128, 128);
  const Tensor scale{memory.data(), DType::float32, shape.rows, shape.cols};
  try {
    gpu.run(op::Fp8Product{.a = matrix,
                           .a_scale = scale,
                           .b = matrix,
                           .b_scale = scale,
                           .residual = {},
                           .y = {memory.data(), DType::float32, 128, 128},
                           .accumulate_y = Accumulate::no,
                           .fast_accumulation = false,
                           .workspace = {}});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Fp8Capability, GpusWithoutAProductAreNamed) {
  EXPECT_THAT(refusal("8", Fp8Scaling::tensor),
              HasSubstr("emulated GPU has compute capability 8.0, but products in 8 bits need 8.9"));
  EXPECT_THAT(refusal("10", Fp8Scaling::tiles),
              HasSubstr("emulated GPU has compute capability 10.0, but products in 8 bits with scales of "
                        "blocks need 9.0"));
}

}  // namespace
}  // namespace llampi::test
