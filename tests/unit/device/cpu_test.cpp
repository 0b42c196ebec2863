// SPDX-License-Identifier: Apache-2.0
// The CPU device against the reference, with every variant of its kernels, and against itself.
#include <cmath>
#include <set>

#include "device/cpu/cpu_device.hpp"
#include "llampi/core/clock.hpp"
#include "support/device_operations.hpp"

namespace llampi::test {
namespace {

/// A sum of n terms in float32, each rounded by up to eps, has an error of about eps sqrt(n) times its own
/// size when the signs are random. Elements are compared with the largest of their tensor; an operation has
/// up to three such sums behind each other (attention's backward pass), and the largest of 10^5 errors is
/// about four times the usual one.
double tolerance(const OperationCase& op) { return 2 * kEpsilon * std::sqrt(static_cast<double>(op.terms)); }

/// Forward and both kinds of backward on `device` against the reference; twice, with equal bits.
void expect_like_reference(device::Device& device, const OperationCase& op) {
  SCOPED_TRACE(op.name);
  const auto reference_device = device::make_reference_device();
  Session reference(*reference_device, DType::float64), session(device, DType::float32);
  const std::vector<Values> expected = op.forward(reference, op.inputs);
  const std::vector<Values> actual = op.forward(session, op.inputs);
  expect_all_close(actual, expected, tolerance(op));
  expect_all_same(op.forward(session, op.inputs), actual);
  if (!op.backward) return;
  const Values dy = gradient_of_output(op, expected);
  for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
    const std::vector<Values> gradients = op.backward(session, op.inputs, dy, accumulate);
    expect_all_close(gradients, op.backward(reference, op.inputs, dy, accumulate), tolerance(op));
    expect_all_same(op.backward(session, op.inputs, dy, accumulate), gradients);
  }
}

class CpuDeviceTest : public ::testing::TestWithParam<int> {
 protected:
  int threads() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Threads, CpuDeviceTest, ::testing::Values(1, 2, 3));

std::vector<Layout> layouts() {
  return {one_document(1),  one_document(7),   one_document(65),    one_document(130),
          single_tokens(7), single_tokens(65), mixed_documents(65), mixed_documents(130)};
}

TEST_P(CpuDeviceTest, EmbeddingIsLikeTheReference) {
  const auto device = device::make_cpu_device(threads());
  for (const Layout& layout : {one_document(1), one_document(130)}) {
    for (const std::int64_t hidden : {20, 80, 288}) expect_like_reference(*device, embedding(layout, hidden));
  }
}

TEST_P(CpuDeviceTest, RmsNormIsLikeTheReference) {
  const auto device = device::make_cpu_device(threads());
  for (const std::int64_t tokens : {1, 7, 65, 130}) {
    for (const std::int64_t hidden : {20, 80, 288}) expect_like_reference(*device, rms_norm(tokens, hidden));
  }
}

TEST_P(CpuDeviceTest, AttentionCachedIsLikeTheReference) {
  const auto device = device::make_cpu_device(threads());
  for (const std::int64_t kv_len : {0, 1, 63, 130}) {
    for (const std::int64_t tokens : {1, 16, 65}) {
      for (const device::AttentionShape shape : {device::AttentionShape{1, 1, 20}, {4, 2, 16}, {6, 1, 64}})
        expect_like_reference(*device, cached_attention(kv_len, tokens, shape));
    }
  }
}

TEST_P(CpuDeviceTest, QkvRopeIsLikeTheReference) {
  const auto device = device::make_cpu_device(threads());
  for (const Layout& layout : layouts()) {
    expect_like_reference(*device, qkv_rope(layout, 80, {4, 2, 20}));
    expect_like_reference(*device, qkv_rope(layout, 80, {3, 1, 16}));
  }
  expect_like_reference(*device, qkv_rope(mixed_documents(130), 288, {6, 6, 64}));
}

TEST_P(CpuDeviceTest, QkvTransformsAreLikeTheReference) {
  const auto device = device::make_cpu_device(threads());
  for (const Transform transform : {Transform::bias, Transform::norms}) {
    for (const Layout& layout : layouts()) {
      expect_like_reference(*device, qkv_rope(layout, 80, {4, 2, 20}, transform));
      expect_like_reference(*device, rope(layout, {3, 1, 66}, transform));
    }
  }
}

TEST_P(CpuDeviceTest, AttentionWithAWindowIsLikeTheReference) {
  const auto device = device::make_cpu_device(threads());
  for (const std::int64_t window : {1, 3, 16, 63, 64, 65, 1000}) {
    for (const Layout& layout : {one_document(7), one_document(200), mixed_documents(130)}) {
      expect_like_reference(*device, attention(layout, {4, 2, 16, window}));
      expect_like_reference(*device, attention(layout, {3, 1, 20, window}));
    }
    for (const std::int64_t kv_len : {0, 5, 130})
      expect_like_reference(*device, cached_attention(kv_len, 65, {4, 2, 16, window}));
  }
}

// A window that holds all of a document is none, bit by bit.
TEST_P(CpuDeviceTest, AttentionWithAWideWindowHasTheSameBits) {
  const auto device = device::make_cpu_device(threads());
  const OperationCase all = attention(mixed_documents(130), {4, 2, 16}),
                      wide = attention(mixed_documents(130), {4, 2, 16, 130});
  Session s(*device, DType::float32);
  expect_all_same(wide.forward(s, all.inputs), all.forward(s, all.inputs));
}

TEST_P(CpuDeviceTest, RopeAloneIsLikeTheReference) {
  const auto device = device::make_cpu_device(threads());
  for (const Layout& layout : layouts()) expect_like_reference(*device, rope(layout, {4, 2, 20}));
}

TEST_P(CpuDeviceTest, AttentionIsLikeTheReference) {
  const auto device = device::make_cpu_device(threads());
  for (const Layout& layout : layouts()) {
    expect_like_reference(*device, attention(layout, {4, 4, 20}));
    expect_like_reference(*device, attention(layout, {4, 2, 16}));
    expect_like_reference(*device, attention(layout, {6, 2, 20}));
    expect_like_reference(*device, attention(layout, {3, 1, 64}));
  }
}

TEST_P(CpuDeviceTest, ProjectionIsLikeTheReference) {
  const auto device = device::make_cpu_device(threads());
  for (const std::int64_t tokens : {1, 7, 65, 130}) {
    expect_like_reference(*device, projection_residual(tokens, 80, 288));
    expect_like_reference(*device, projection_residual(tokens, 176, 80));
    expect_like_reference(*device, linear(tokens, 80, 331));
  }
}

TEST_P(CpuDeviceTest, AdaptersAreLikeTheReference) {
  const auto device = device::make_cpu_device(threads());
  for (const auto adapted : {Adapted::qkv, Adapted::projection, Adapted::gate_up}) {
    for (const double dropout : {0.0, 0.25}) {
      for (const Layout& layout : {one_document(1), mixed_documents(130)})
        expect_like_reference(*device, adapters(adapted, layout, 5, dropout));
    }
  }
}

TEST_P(CpuDeviceTest, SwiGluIsLikeTheReference) {
  const auto device = device::make_cpu_device(threads());
  for (const std::int64_t tokens : {1, 7, 65, 130}) {
    expect_like_reference(*device, gate_up_swiglu(tokens, 80, 176));
    expect_like_reference(*device, gate_up_swiglu(tokens, 288, 21));
    expect_like_reference(*device, swiglu(tokens, 177));
  }
}

// What is computed once more for the backward pass is what the forward pass had.
TEST_P(CpuDeviceTest, SwiGluAgainHasTheSameBits) {
  const auto device = device::make_cpu_device(threads());
  for (const std::int64_t tokens : {1, 7, 65}) {
    for (const std::int64_t width : {21, 176}) {
      Session s(*device, DType::float32);
      const Tensor gate_up = s.output(tokens, 2 * width), first = s.output(tokens, width),
                   again = s.output(tokens, width);
      device->run(device::op::GateUpSwiglu{.x = s.upload(normal(tokens, 80, "x")),
                                           .weight = s.upload(normal(2 * width, 80, "weight")),
                                           .gate_up = gate_up,
                                           .activated = first});
      const Values gates = s.download(gate_up);
      device->run(device::op::Swiglu{.gate_up = gate_up, .activated = again});
      EXPECT_TRUE(same_bits(s.download(again), s.download(first)));
      EXPECT_TRUE(same_bits(s.download(gate_up), gates));
      EXPECT_GT(largest_magnitude(s.download(again)), 0);
    }
  }
}

TEST_P(CpuDeviceTest, HeadIsLikeTheReference) {
  const auto device = device::make_cpu_device(threads());
  for (const std::int32_t tokens : {1, 7, 65, 130}) {
    expect_like_reference(*device, linear_cross_entropy(one_document(tokens), 80));
    expect_like_reference(*device, tied_head(one_document(tokens), 80));
  }
  expect_like_reference(*device, linear_cross_entropy(one_document(300), 80));  // more than one chunk
  for (const std::int64_t every : {1, 2, 7, 1000}) {  // all tokens have a label, some, none
    Layout layout = one_document(300);
    layout.label_every = every;
    expect_like_reference(*device, linear_cross_entropy(layout, 80));
  }
}

TEST_P(CpuDeviceTest, AddsCopiesAndZeroes) {
  const auto device = device::make_cpu_device(threads());
  Session s(*device, DType::float32);
  const Values a = normal(3, 5001, "a"), b = normal(3, 5001, "b");
  const Tensor source = s.upload(a), destination = s.upload(b), copied = s.output(3, 5001);
  device->run(device::op::Add{.source = source, .destination = destination});
  const Values sum = s.download(destination);
  for (std::size_t i = 0; i < sum.data.size(); ++i) {
    ASSERT_EQ(static_cast<float>(sum.data[i]), static_cast<float>(a.data[i]) + static_cast<float>(b.data[i]))
        << i;
  }
  device->run(device::op::Copy{.source = source, .destination = copied});
  EXPECT_TRUE(same_bits(s.download(copied), a));
  device->run(device::op::Zero{.destination = copied});
  EXPECT_EQ(largest_magnitude(s.download(copied)), 0);
}

// Each variant that this machine can run, against the reference.
TEST(CpuKernels, AllVariantsAgree) {
  const std::vector<const device::Kernels*> variants = device::available_kernels();
  for (const device::Kernels* kernels : variants) {
    SCOPED_TRACE(kernels->name);
    device::CpuDevice device(2, *kernels);
    expect_like_reference(device, embedding(one_document(65), 80));
    expect_like_reference(device, rms_norm(65, 83));
    expect_like_reference(device, qkv_rope(mixed_documents(65), 80, {4, 2, 20}));
    expect_like_reference(device, attention(mixed_documents(130), {6, 2, 20}));
    expect_like_reference(device, gate_up_swiglu(65, 80, 177));
    expect_like_reference(device, linear_cross_entropy(mixed_documents(65), 80));
  }
}

// What is computed row by row depends on the row alone: not on its place, the number of rows or the threads.
TEST(CpuRows, EqualRowsGiveEqualBits) {
  const std::int64_t hidden = 83;
  const Values row = normal(1, hidden, "row"), weight = normal(1, hidden, "weight");
  std::vector<float> first;
  for (const int threads : {1, 2, 3}) {
    const auto device = device::make_cpu_device(threads);
    for (const std::int64_t tokens : {1, 7, 65}) {
      Session s(*device, DType::float32);
      Values x{tokens, hidden, {}};
      for (std::int64_t t = 0; t < tokens; ++t) x.data.insert(x.data.end(), row.data.begin(), row.data.end());
      const Tensor y = s.output(tokens, hidden), inverse_rms = s.output(1, tokens);
      device->run(device::op::RmsNorm{
          .x = s.upload(x), .weight = s.upload(weight), .eps = 1e-5, .y = y, .inverse_rms = inverse_rms});
      const float* values = y.as<float>();
      if (first.empty()) first.assign(values, values + hidden);
      for (std::int64_t i = 0; i < y.elements(); ++i)
        ASSERT_EQ(values[i], first[static_cast<std::size_t>(i % hidden)]);
    }
  }
}

// Where squares are too large for float32, an inverse of 0 would give an output of zeros, and a loss that looks like one.
TEST(CpuRows, NormsOfTooLargeNumbersAreNoNumbers) {
  const auto device = device::make_cpu_device(1);
  for (const float magnitude : {1e18F, 1e20F}) {
    Session s(*device, DType::float32);
    const Values x{1, 20, std::vector<double>(20, magnitude)}, weight{1, 20, std::vector<double>(20, 1)};
    const Tensor y = s.output(1, 20);
    device->run(device::op::RmsNorm{
        .x = s.upload(x), .weight = s.upload(weight), .eps = 1e-5, .y = y, .inverse_rms = s.output(1, 1)});
    EXPECT_EQ(std::isnan(*y.as<float>()), magnitude > 1e19F) << magnitude;
  }
}

// The bits of a document do not depend on what else is in the batch.
TEST(CpuAttention, DocumentsDoNotTouchEachOther) {
  const auto device = device::make_cpu_device(2);
  const device::AttentionShape shape{4, 2, 16};
  const OperationCase both = attention({"", {70, 33}}, shape);
  OperationCase second = attention(one_document(33), shape);
  second.inputs[0].data.assign(both.inputs[0].data.begin() + 70 * shape.qkv_cols(),
                               both.inputs[0].data.end());
  Session s(*device, DType::float32);
  Values expected = both.forward(s, both.inputs)[0];
  expected = {33, expected.cols, {expected.data.begin() + 70 * expected.cols, expected.data.end()}};
  EXPECT_TRUE(same_bits(second.forward(s, second.inputs)[0], expected));
}

// Scores far apart: e^x underflows to zero, and nothing overflows.
TEST(CpuAttention, LargeScoresDoNotOverflow) {
  const auto device = device::make_cpu_device(2);
  OperationCase op = attention(one_document(65), {2, 1, 16});
  for (double& v : op.inputs[0].data)
    v *= 16;  // scores of about +- 1000: probabilities are 0 or 1, their errors 1000 times eps
  const auto reference_device = device::make_reference_device();
  Session reference(*reference_device, DType::float64), session(*device, DType::float32);
  expect_all_close(op.forward(session, op.inputs), op.forward(reference, op.inputs), 1000 * tolerance(op));
}

TEST(CpuHead, RowsWithoutLabelsHaveNoGradient) {
  const auto device = device::make_cpu_device(2);
  Session s(*device, DType::float32);
  const OperationCase op = linear_cross_entropy(one_document(65), 80);
  const std::vector<Values> gradients = op.backward(s, op.inputs, {1, 1, {0.01}}, Accumulate::no);
  for (std::int64_t t = 3; t < 65; t += 5) {
    for (std::int64_t i = 0; i < 80; ++i)
      ASSERT_EQ(gradients[0].data[static_cast<std::size_t>(t * 80 + i)], 0) << t;
  }
}

TEST(CpuHead, NumbersThatAreNotFiniteShow) {
  const auto device = device::make_cpu_device(2);
  Session s(*device, DType::float32);
  OperationCase op = linear_cross_entropy(one_document(7), 80);
  op.inputs[0].data[80] = std::nan("");
  EXPECT_TRUE(std::isnan(op.forward(s, op.inputs)[0].data[0]));
  op.inputs[0].data[80] = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(std::isfinite(op.forward(s, op.inputs)[0].data[0]));
}

TEST(CpuDeviceRules, RefusesOtherTypesAndWrongShapes) {
  const auto device = device::make_cpu_device(1);
  Session s(*device, DType::float64);
  EXPECT_THROW(device->run(device::op::Add{.source = s.output(2, 3), .destination = s.output(2, 3)}), Error);
  Session f(*device, DType::float32);
  Tensor half = f.output(2, 4);
  half.dtype = DType::bfloat16;
  EXPECT_THROW(device->run(device::op::Add{.source = half, .destination = half}), Error);
  EXPECT_THROW(
      device->run(device::op::Linear{.x = f.output(2, 3), .weight = f.output(4, 5), .y = f.output(2, 4)}),
      Error);
  EXPECT_THROW(device->sizes().attention_workspace({4, 2, 16}, 8, 8, DType::bfloat16), Error);
  const Layout layout = one_document(9);
  EXPECT_THROW(device->run(device::op::Attention{.documents = documents_of(f.batch(layout), 8),
                                                 .shape = {2, 1, 8},
                                                 .qkv = f.output(9, 32),
                                                 .out = f.output(9, 16),
                                                 .log_sum_exp = f.output(2, 9),
                                                 .workspace = f.workspace(device->sizes().attention_workspace(
                                                     {2, 1, 8}, 9, 8, DType::float32))}),
               Error);
  EXPECT_THROW(device::make_cpu_device(0), Error);
}

TEST(CpuDeviceRules, SizesNeedNoDevice) {
  const auto sizes = device::make_cpu_sizes(3);
  const auto device = device::make_cpu_device(3);
  const device::AttentionShape shape{6, 2, 64};
  EXPECT_EQ(sizes->attention_workspace(shape, 512, 256, DType::float32),
            device->sizes().attention_workspace(shape, 512, 256, DType::float32));
  // Never a document x document matrix: it grows with the length, not its square.
  const auto bytes = [&](std::int64_t longest) {
    return sizes->attention_backward_workspace(shape, longest, longest, DType::float32, 0);
  };
  EXPECT_LE(bytes(1 << 14), 2 * bytes(1 << 13));
  // A chunk of the logits, not all of them.
  EXPECT_LT(sizes->linear_cross_entropy_workspace(1 << 20, 32000, DType::float32, device::kLogitsBytes),
            std::int64_t{64} << 20);
}

TEST(CpuDeviceRules, MemoryIsZeroAndAligned) {
  const auto device = device::make_cpu_device(1);
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{5000}, std::int64_t{3} << 20}) {
    for (const device::Memory& memory : {device->allocate(bytes), device->allocate_host(bytes)}) {
      const auto alignment = bytes >= (2 << 20) ? std::uintptr_t{2} << 20 : std::uintptr_t{4096};
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % alignment, 0);
      EXPECT_EQ(memory.bytes(), bytes);
      for (std::int64_t i = 0; i < bytes; ++i) ASSERT_EQ(memory.data()[i], std::byte{0});
    }
  }
  EXPECT_EQ(device->allocate(0).bytes(), 0);
  EXPECT_EQ(device->allocate_host(0).bytes(), 0);
}

// Other programs take and give memory meanwhile: the shares are compared with room to spare.
TEST(CpuDeviceRules, RanksShareTheMemory) {
  const auto device = device::make_cpu_device(1);
  const std::int64_t alone = device->available_bytes(1);
  EXPECT_GT(alone, 0);
  EXPECT_GT(device->available_bytes(2), 0);
  EXPECT_LT(device->available_bytes(8), alone / 4);
  EXPECT_GT(device::make_reference_device()->available_bytes(1), 0);
}

TEST(CpuDeviceRules, ProgressIsCalledBetweenOperations) {
  const auto device = device::make_cpu_device(2);
  Session s(*device, DType::float32);
  int calls = 0;
  device->set_progress([&] { ++calls; });
  const Tensor x = s.output(4, 8);
  device->run(device::op::Zero{.destination = x});
  EXPECT_EQ(calls, 1);
  device->run(device::op::Add{.source = x, .destination = x});
  device->run(device::op::Copy{.source = x, .destination = s.output(4, 8)});
  EXPECT_EQ(calls, 3);
}

TEST(CpuDeviceRules, TimedEventsHaveTheTimeOfTheHost) {
  const auto device = device::make_cpu_device(1);
  EXPECT_FALSE(device->runs_beside_host());
  const device::Event begin = device->record_timed(device::Stream::compute);
  const double before = steady_seconds();
  while (steady_seconds() - before < 1e-3) {
  }
  const double took = steady_seconds() - before;
  const device::Event end = device->record_timed(device::Stream::host);
  EXPECT_GE(device->seconds_between(begin, end), took);
  EXPECT_EQ(device->seconds_between(end, begin), -device->seconds_between(begin, end));
}

TEST(CpuDeviceRules, DescribesItself) {
  const std::string text = device::make_cpu_device(2)->describe();
  EXPECT_NE(text.find("2 threads"), std::string::npos) << text;
  std::printf("%s\n", text.c_str());
}

}  // namespace
}  // namespace llampi::test
