// SPDX-License-Identifier: Apache-2.0
// Attention where cuDNN may do it, on a GPU: the other tests of operations have native kernels only.
#include <cmath>

#include "gpu/gpu_fixture.hpp"
#include "support/device_operations.hpp"

namespace llampi::test {
namespace {

// Windows of less than a tile, and of more.
constexpr device::AttentionShape kShapes[] = {
    {4, 2, 64}, {8, 1, 128}, {3, 3, 64}, {4, 2, 64, 30}, {8, 2, 128, 150}};

/// Equal sequences, in whole tiles and not; documents, the last of them short; so many that some are padding.
std::vector<Layout> layouts() {
  return {one_document(256),
          {"two sequences", {128, 128}},
          {"two unaligned sequences", {100, 100}},
          {"three documents", {70, 33, 25}},
          mixed_documents(300)};
}

/// As in operations_test.cpp: sums in float32, values kept in 16 bits.
double tolerance(const OperationCase& op, DType dtype) {
  return 2 * kEpsilon * std::sqrt(static_cast<double>(op.terms)) + 2 * op.roundings * unit_roundoff(dtype);
}

struct Results {
  std::vector<Values> forward, backward;
};

Results run(device::Device& device, const OperationCase& op, DType dtype, const Values& dy) {
  Session session(device, dtype);
  return {op.forward(session, op.inputs), op.backward(session, op.inputs, dy, Accumulate::no)};
}

/// The reference's results from inputs of `dtype`, and the gradient that arrives.
Results expected_of(const OperationCase& op, DType dtype, Values& dy) {
  const auto device = device::make_reference_device();
  Session session(*device, DType::float64, Weights::trained, dtype);
  Results results{op.forward(session, op.inputs), {}};
  dy = normal(results.forward[0].rows, results.forward[0].cols, "dy");
  results.backward = op.backward(session, op.inputs, dy, Accumulate::no);
  return results;
}

class CudnnAttentionTest : public ::testing::Test {
 protected:
  /// Null, and the test is skipped, where there is no GPU.
  std::unique_ptr<device::Device> make(bool deterministic, device::GpuAttention attention) {
    std::string why;
    auto device = make_gpu({.deterministic = deterministic, .attention = attention}, why);
    if (!device) skip("no GPU to test: " + why);
    return device;
  }
  static void skip(const std::string& why) { GTEST_SKIP() << why; }

  /// Every shape in bfloat16, and the first in float16 too.
  static void expect_like_reference(device::Device& device) {
    for (const device::AttentionShape& shape : kShapes) {
      for (const Layout& layout : layouts()) expect_like_reference(device, layout, shape, DType::bfloat16);
    }
    for (const Layout& layout : layouts()) expect_like_reference(device, layout, kShapes[0], DType::float16);
  }

 private:
  static void expect_like_reference(device::Device& device, const Layout& layout,
                                    const device::AttentionShape& shape, DType dtype) {
    const OperationCase op = attention(layout, shape);
    SCOPED_TRACE(fmt::format("{}, {}, {}", op.name, to_string(dtype), device.describe()));
    Values dy;
    const Results expected = expected_of(op, dtype, dy), actual = run(device, op, dtype, dy);
    for (std::size_t i = 0; i < expected.forward.size(); ++i)
      EXPECT_TRUE(close(actual.forward[i], expected.forward[i], tolerance(op, dtype))) << "result " << i;
    EXPECT_TRUE(close(actual.backward[0], expected.backward[0], tolerance(op, dtype))) << "gradient";
    Session session(device, dtype);
    EXPECT_TRUE(same_bits(op.forward(session, op.inputs)[0], actual.forward[0]));
  }
};

TEST_F(CudnnAttentionTest, IsLikeTheReference) {
  const auto device = make(false, device::GpuAttention::automatic);
  if (device) expect_like_reference(*device);
}

// The gradients are then native kernels' on many GPUs, from what cuDNN's forward direction left.
TEST_F(CudnnAttentionTest, IsLikeTheReferenceWhereTheSameBitsAreAskedFor) {
  const auto device = make(true, device::GpuAttention::automatic);
  if (!device) return;
  expect_like_reference(*device);
  const OperationCase op = attention(mixed_documents(300), {8, 2, 128});
  Values dy;
  expected_of(op, DType::bfloat16, dy);
  const Results first = run(*device, op, DType::bfloat16, dy);
  for (int i = 0; i < 5; ++i)
    EXPECT_TRUE(same_bits(run(*device, op, DType::bfloat16, dy).backward[0], first.backward[0])) << i;
}

TEST_F(CudnnAttentionTest, DoesWhatItIsDemandedFor) {
  std::unique_ptr<device::Device> device;
  try {
    device = make(false, device::GpuAttention::cudnn);
  } catch (const UserError& error) {
    skip(fmt::format("no GPU to test with cuDNN: {}", error.what()));
  }
  if (!device) return;
  const OperationCase op = attention({"two sequences", {128, 128}}, {4, 2, 64});
  Values dy;
  expected_of(op, DType::bfloat16, dy);
  EXPECT_NO_THROW(run(*device, op, DType::bfloat16, dy));
  EXPECT_THROW(run(*device, op, DType::float32, dy), Error);
}

}  // namespace
}  // namespace llampi::test
