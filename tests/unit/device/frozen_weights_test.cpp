// SPDX-License-Identifier: Apache-2.0
// Backward passes without the gradients of weights (empty tensors): all other bits are as with it.
#include "device/cpu/cpu_device.hpp"
#include "support/device_operations.hpp"

namespace llampi::test {
namespace {

/// Sizes that fill no vector and divide by no number of threads; LinearCrossEntropy in more than one chunk.
std::vector<OperationCase> operations() {
  return {embedding(one_document(65), 83),
          rms_norm(1, 83),
          rms_norm(65, 83),
          qkv_rope(mixed_documents(65), 83, {3, 1, 6}),
          qkv_rope(mixed_documents(65), 83, {3, 1, 6}, Transform::bias),
          qkv_rope(mixed_documents(65), 83, {3, 1, 6}, Transform::norms),
          projection_residual(65, 83, 37),
          gate_up_swiglu(65, 83, 21),
          linear_cross_entropy(one_document(301), 13)};
}

/// Bit by bit equal to the run with the weight's gradient, but for that gradient, which is not there.
void expect_only_the_weight_missing(device::Device& device, DType dtype, const OperationCase& op,
                                    Accumulate accumulate) {
  Session trained(device, dtype), frozen(device, dtype, Weights::frozen);
  const Values shape = op.forward(trained, op.inputs).front();
  const Values dy = normal(shape.rows, shape.cols, "dy");
  const std::vector<Values> expected = op.backward(trained, op.inputs, dy, accumulate);
  const std::vector<Values> actual = op.backward(frozen, op.inputs, dy, accumulate);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    SCOPED_TRACE(fmt::format("result {}", i));
    EXPECT_GT(largest_magnitude(expected[i]), 0);
    if (i < op.inputs.size() && i + op.weights >= op.inputs.size()) {
      EXPECT_TRUE(actual[i].data.empty());
    } else {
      EXPECT_TRUE(same_bits(actual[i], expected[i]));
    }
  }
}

void expect_only_the_weights_missing(device::Device& device, DType dtype) {
  for (const OperationCase& op : operations()) {
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      SCOPED_TRACE(fmt::format("{}, accumulate {}, seed {}", op.name, accumulate == Accumulate::yes, kSeed));
      expect_only_the_weight_missing(device, dtype, op, accumulate);
    }
  }
}

TEST(FrozenWeights, LackOnlyTheirGradientsOnTheReference) {
  const auto device = device::make_reference_device();
  expect_only_the_weights_missing(*device, DType::float64);
}

TEST(FrozenWeights, LackOnlyTheirGradientsOnTheCpu) {
  for (const device::Kernels* kernels : device::available_kernels()) {
    for (const int threads : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{}, {} threads", kernels->name, threads));
      device::CpuDevice device(threads, *kernels);
      expect_only_the_weights_missing(device, DType::float32);
    }
  }
}

}  // namespace
}  // namespace llampi::test
