// SPDX-License-Identifier: Apache-2.0
// Every operation of the GPU against the reference, in the three dtypes.
#include <algorithm>
#include <cmath>
#include <span>

#include "gpu/gpu_fixture.hpp"
#include "support/device_operations.hpp"

namespace llampi::test {
namespace {

/// What sums in float32 lose is as on the CPU (cpu_test.cpp): 2 eps sqrt(terms). A result or an intermediate
/// value that is kept in 16 bits is off by up to u of itself, u the dtype's unit roundoff. The result's own
/// rounding is at most u of the largest element. An intermediate one that goes into a sum of many terms, each
/// rounded for itself, adds errors of standard deviation u / sqrt(3) times that of the sum; the largest of
/// 10^5 errors is about four times that, as the largest element is about four times the usual one: less than
/// u of it. Twice that for small tensors, where the largest element is not so large.
double tolerance(const OperationCase& op, DType dtype) {
  const double sums = 2 * kEpsilon * std::sqrt(static_cast<double>(op.terms));
  return dtype == DType::float32 ? sums : sums + 2 * op.roundings * unit_roundoff(dtype);
}

class GpuOperations : public GpuTest {
 protected:
  static std::vector<Layout> layouts() {
    return {one_document(1), one_document(7), one_document(130), single_tokens(7), mixed_documents(65)};
  }

  /// Forward and both kinds of backward against the reference; in each order of work, with equal bits.
  static void expect_like_reference(const OperationCase& op, std::span<const DType> dtypes = kGpuTypes) {
    for (const DType dtype : dtypes) {
      SCOPED_TRACE(fmt::format("{}, {}, seed {}", op.name, to_string(dtype), kSeed));
      const auto reference_device = device::make_reference_device();
      Session reference(*reference_device, DType::float64, Weights::trained, dtype);
      expect_like(op, dtype, op.forward(reference, op.inputs),
                  [&](Session& s) { return op.forward(s, op.inputs); });
      if (!op.backward) continue;
      const Values dy = gradient_of_output(op, op.forward(reference, op.inputs));
      const bool adds = std::find(op.accumulates.begin(), op.accumulates.end(), true) != op.accumulates.end();
      for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
        if (accumulate == Accumulate::yes && !adds) continue;
        SCOPED_TRACE(accumulate == Accumulate::yes ? "gradients, added" : "gradients");
        expect_like(op, dtype, op.backward(reference, op.inputs, dy, accumulate),
                    [&](Session& s) { return op.backward(s, op.inputs, dy, accumulate); });
      }
      expect_weights_can_be_frozen(op, dtype, dy);
      expect_narrow_gradients(op, dtype, reference, dy);
    }
  }

 private:
  template <class Run>
  static void expect_like(const OperationCase& op, DType dtype, const std::vector<Values>& expected,
                          const Run& run) {
    std::vector<Values> first;
    for (const WorkOrder& order : compared_orders()) {
      SCOPED_TRACE(order.name);
      order.set();
      Session session(device(), dtype);
      const std::vector<Values> actual = run(session);
      expect_all_close(actual, expected, tolerance(op, dtype));
      if (first.empty()) first = actual;
      expect_all_same(actual, first);
    }
  }

  /// Gradients of weights in the dtype of the activations are rounded once more.
  static void expect_narrow_gradients(const OperationCase& op, DType dtype, Session& reference,
                                      const Values& dy) {
    if (dtype == DType::float32) return;
    SCOPED_TRACE("narrow gradients of weights");
    OperationCase rounded = op;
    ++rounded.roundings;
    for (const bool adds : op.accumulates) {
      const Accumulate accumulate = adds ? Accumulate::yes : Accumulate::no;
      Session narrow(device(), dtype, Weights::narrow);
      expect_all_close(op.backward(narrow, op.inputs, dy, accumulate),
                       op.backward(reference, op.inputs, dy, accumulate), tolerance(rounded, dtype));
    }
  }

  /// Without the weights' gradients, the last inputs', all else has the same bits.
  static void expect_weights_can_be_frozen(const OperationCase& op, DType dtype, const Values& dy) {
    if (op.weights == 0) return;
    SCOPED_TRACE("frozen");
    Session trained(device(), dtype), frozen(device(), dtype, Weights::frozen);
    const std::vector<Values> expected = op.backward(trained, op.inputs, dy, Accumulate::yes);
    const std::vector<Values> actual = op.backward(frozen, op.inputs, dy, Accumulate::yes);
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (i < op.inputs.size() && i + op.weights >= op.inputs.size()) {
        EXPECT_TRUE(actual[i].data.empty());
      } else {
        EXPECT_TRUE(same_bits(actual[i], expected[i])) << "result " << i;
      }
    }
  }
};

TEST_F(GpuOperations, EmbeddingIsLikeTheReference) {
  for (const Layout& layout : {one_document(1), one_document(130)}) {
    for (const std::int64_t hidden : {20, 83, 288}) expect_like_reference(embedding(layout, hidden));
  }
}

// One or two ids for all tokens: the gradient of a row is a sum over many.
TEST_F(GpuOperations, EmbeddingOfFrequentTokensIsLikeTheReference) {
  for (const std::int64_t vocabulary : {1, 2}) {
    Layout layout = one_document(131);
    layout.vocabulary = vocabulary;
    for (const std::int64_t hidden : {20, 83}) expect_like_reference(embedding(layout, hidden));
  }
}

TEST_F(GpuOperations, RmsNormIsLikeTheReference) {
  for (const std::int64_t tokens : {1, 33}) {
    for (const std::int64_t hidden : {20, 83, 288, 1030, 1031})
      expect_like_reference(rms_norm(tokens, hidden));
  }
}

// As on CPUs: not 0.
TEST_F(GpuOperations, NormsOfTooLargeNumbersAreNoNumbers) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const double magnitude : {1e18, 1e20}) {
      Session s(device(), dtype);
      const Values x{1, 20, std::vector<double>(20, magnitude)}, weight{1, 20, std::vector<double>(20, 1)};
      const Tensor y = s.output(1, 20), inverse_rms = s.output(1, 1, DType::float32);
      device().run(device::op::RmsNorm{
          .x = s.upload(x), .weight = s.upload(weight), .eps = 1e-5, .y = y, .inverse_rms = inverse_rms});
      EXPECT_EQ(std::isnan(s.download(y).data[0]), magnitude > 1e19) << to_string(dtype) << ", " << magnitude;
    }
  }
}

TEST_F(GpuOperations, QkvRopeIsLikeTheReference) {
  for (const Layout& layout : layouts()) {
    expect_like_reference(qkv_rope(layout, 40, {4, 2, 20}));
    expect_like_reference(qkv_rope(layout, 37, {3, 1, 6}));
  }
  expect_like_reference(qkv_rope(mixed_documents(130), 64, {6, 6, 64}));
}

// Heads of 6, 20, 64, 128, 136 and 256: of one, two and four pairs for each lane of a warp, with and without vectors.
TEST_F(GpuOperations, QkvTransformsAreLikeTheReference) {
  for (const Transform transform : {Transform::bias, Transform::norms}) {
    for (const Layout& layout : layouts()) expect_like_reference(qkv_rope(layout, 40, {4, 2, 20}, transform));
    expect_like_reference(qkv_rope(mixed_documents(65), 37, {3, 1, 6}, transform));
    for (const std::int64_t dim : {64, 128, 136, 256})
      expect_like_reference(rope(mixed_documents(33), {3, 1, dim}, transform));
  }
}

TEST_F(GpuOperations, RopeAloneIsLikeTheReference) {
  for (const Layout& layout : {one_document(1), mixed_documents(65)}) {
    expect_like_reference(rope(layout, {4, 2, 20}));
    expect_like_reference(rope(layout, {6, 6, 64}));
  }
}

// Heads of 16, 64 and 128 are for tensor cores (in 16 bits), the others are not.
TEST_F(GpuOperations, AttentionIsLikeTheReference) {
  for (const Layout& layout : layouts()) expect_like_reference(attention(layout, {4, 2, 16}));
  expect_like_reference(attention(one_document(7), {3, 1, 64}));
  expect_like_reference(attention(mixed_documents(130), {2, 1, 64}));
  expect_like_reference(attention(mixed_documents(65), {2, 2, 128}));
  expect_like_reference(attention(mixed_documents(65), {4, 4, 20}));
  expect_like_reference(attention(one_document(35), {3, 1, 6}));
  expect_like_reference(attention(mixed_documents(40), {2, 1, 136}));
}

// Windows within a tile, of whole tiles, and longer than the documents; tests/gpu/kernels has more.
TEST_F(GpuOperations, AttentionWithAWindowIsLikeTheReference) {
  for (const std::int64_t window : {3, 64, 1000}) {
    expect_like_reference(attention(one_document(200), {2, 1, 64, window}));
    expect_like_reference(attention(mixed_documents(130), {4, 2, 16, window}));
    expect_like_reference(attention(mixed_documents(65), {2, 2, 128, window}));
    expect_like_reference(attention(mixed_documents(65), {3, 1, 6, window}));
    expect_like_reference(cached_attention(150, 5, {4, 2, 16, window}));
  }
}

TEST_F(GpuOperations, AttentionCachedIsLikeTheReference) {
  for (const std::int64_t kv_len : {0, 31, 150}) {
    for (const std::int64_t tokens : {1, 16}) {
      expect_like_reference(cached_attention(kv_len, tokens, {4, 2, 16}));
      expect_like_reference(cached_attention(kv_len, tokens, {3, 1, 6}));
    }
  }
  expect_like_reference(cached_attention(70, 5, {2, 1, 136}));
  expect_like_reference(cached_attention(200, 3, {2, 2, 128}));
}

TEST_F(GpuOperations, ProjectionIsLikeTheReference) {
  for (const std::int64_t tokens : {1, 7, 65}) {
    expect_like_reference(projection_residual(tokens, 83, 37));
    expect_like_reference(projection_residual(tokens, 40, 96));
    expect_like_reference(linear(tokens, 40, 331));
  }
}

TEST_F(GpuOperations, SwiGluIsLikeTheReference) {
  for (const std::int64_t tokens : {1, 7, 65}) {
    expect_like_reference(gate_up_swiglu(tokens, 40, 88));
    expect_like_reference(gate_up_swiglu(tokens, 83, 21));
    expect_like_reference(swiglu(tokens, 88));
    expect_like_reference(swiglu(tokens, 21));
  }
}

// Not of one token with rank 1: du is one number then, and terms of its sum that cancel leave a gradient that is smaller than
// what the tolerance is derived for.
TEST_F(GpuOperations, AdaptersAreLikeTheReference) {
  for (const Adapted adapted : {Adapted::qkv, Adapted::projection, Adapted::gate_up}) {
    for (const double dropout : {0.0, 0.25}) {
      expect_like_reference(adapters(adapted, mixed_documents(33), 5, dropout));
      expect_like_reference(adapters(adapted, one_document(7), 8, dropout));
    }
    expect_like_reference(adapters(adapted, one_document(7), 1, 0.5));
    expect_like_reference(adapters(adapted, one_document(1), 8, 0.5));
  }
}

Values rounded_to_float(Values values) {
  for (double& value : values.data) value = static_cast<double>(static_cast<float>(value));
  return values;
}

/// What is left of x [T, C] with the mask of `dropout`, and what an adapter of ones adds of it to a dx of zeros.
struct LeftByDropout {
  Values written, added;
};
LeftByDropout left_by(device::Device& device, DType dtype, const Values& x, std::int64_t first_sample,
                      device::Dropout dropout) {
  Session s(device, dtype);
  const auto number = static_cast<std::uint64_t>(first_sample);
  const auto word = [](std::uint64_t bits) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(bits));
  };
  dropout.first_sample = s.integers({word(number), word(number >> 32)});
  dropout.dropped = s.output(x.rows, x.cols);
  const auto ones = [&](std::int64_t rows, std::int64_t cols) {
    return s.upload({rows, cols, std::vector<double>(static_cast<std::size_t>(rows * cols), 1.0)});
  };
  const device::LowRank adapter{.a = ones(1, x.cols),
                                .b = ones(1, 1),
                                .u = s.output(x.rows, 1),
                                .dropout = dropout,
                                .du = s.output(x.rows, 1)};
  LeftByDropout left;
  device.run(device::op::LowRankDown{.x = s.upload(x), .adapters = {&adapter, 1}});
  left.written = s.download(dropout.dropped);
  const Tensor dx = s.output(x.rows, x.cols);
  device.run(device::op::InputGradient{
      .dy = ones(x.rows, 1),
      .weight = s.upload({1, x.cols, std::vector<double>(static_cast<std::size_t>(x.cols), 0.0)}),
      .dx = dx,
      .adapters = {&adapter, 1}});
  left.added = s.download(dx);
  return left;
}

// Rows of one block of random bits and of many, which two and more blocks of threads share, with and without vectors.
TEST_F(GpuOperations, DropoutHasTheBitsOfTheCpu) {
  const auto cpu = device::make_cpu_device(1);
  for (const std::int64_t cols : {1, 8, 43, 48, 2056, 4099}) {
    for (const std::int64_t first_sample : {std::int64_t{0}, (std::int64_t{1} << 33) + 7, std::int64_t{-1}}) {
      SCOPED_TRACE(fmt::format("{} columns, sample {}", cols, first_sample));
      const device::Dropout dropout{.probability = 0.3, .key = kSeed, .purpose = 77, .seq_len = 3};
      Values x = normal(7, cols, "x");
      for (double& value : x.data) value = value == 0 ? 1 : value;
      const LeftByDropout expected = left_by(*cpu, DType::float32, x, first_sample, dropout),
                          exact = left_by(device(), DType::float32, x, first_sample, dropout);
      // The CPU reads x itself where nothing is dropped.
      const Values written = first_sample < 0 ? rounded_to_float(x) : expected.written;
      EXPECT_TRUE(same_bits(exact.written, written));
      EXPECT_TRUE(same_bits(exact.added, expected.added));
      for (const DType dtype : {DType::bfloat16, DType::float16}) {
        const LeftByDropout narrow = left_by(device(), dtype, x, first_sample, dropout);
        for (std::size_t i = 0; i < x.data.size(); ++i) {
          ASSERT_EQ(narrow.written.data[i] == 0, written.data[i] == 0) << i;
          ASSERT_EQ(narrow.added.data[i] == 0, expected.added.data[i] == 0) << i;
          // x is rounded, then its product with the factor.
          ASSERT_NEAR(narrow.written.data[i], written.data[i],
                      3 * unit_roundoff(dtype) * std::abs(written.data[i]))
              << i;
        }
      }
      if (cols > 1) {
        EXPECT_EQ(std::ranges::count(written.data, 0.0) > 0, first_sample >= 0);
      }
    }
  }
}

// What is computed once more for the backward pass is what the forward pass had.
TEST_F(GpuOperations, SwiGluAgainHasTheSameBits) {
  for (const DType dtype : kGpuTypes) {
    for (const std::int64_t width : {21, 176}) {
      Session s(device(), dtype);
      const Tensor gate_up = s.output(65, 2 * width), first = s.output(65, width),
                   again = s.output(65, width);
      device().run(device::op::GateUpSwiglu{.x = s.upload(normal(65, 80, "x")),
                                            .weight = s.upload(normal(2 * width, 80, "weight")),
                                            .gate_up = gate_up,
                                            .activated = first});
      const Values gates = s.download(gate_up);
      device().run(device::op::Swiglu{.gate_up = gate_up, .activated = again});
      EXPECT_TRUE(same_bits(s.download(again), s.download(first)));
      EXPECT_TRUE(same_bits(s.download(gate_up), gates));
      EXPECT_GT(largest_magnitude(s.download(again)), 0);
    }
  }
}

TEST_F(GpuOperations, HeadIsLikeTheReference) {
  for (const std::int32_t tokens : {1, 23}) {
    expect_like_reference(linear_cross_entropy(one_document(tokens), 40));
    expect_like_reference(tied_head(one_document(tokens), 37));
  }
  // As many as a warp looks at at once, in float32 and in 16 bits, and more; more than a block looks at at once.
  Layout wide = one_document(4);  // the last token has no label
  for (const std::int64_t vocabulary : {512, 513, 1024, 1025, 20001}) {
    wide.vocabulary = vocabulary;
    expect_like_reference(linear_cross_entropy(wide, 5));
  }
  // More than it can keep. In float16 gradients of so many logits vanish unless the loss is scaled.
  constexpr DType kNotFloat16[] = {DType::float32, DType::bfloat16};
  Layout wider = one_document(1);
  wider.vocabulary = 130001;
  expect_like_reference(linear_cross_entropy(wider, 3), kNotFloat16);
}

// In chunks of one row, and of a tile with a short second one: each rounds a narrow gradient of the weight once more.
TEST_F(GpuOperations, HeadIsLikeTheReferenceInChunksOfAnySize) {
  constexpr std::int64_t kTile = 128;
  const auto in_chunks = [](std::int32_t tokens, std::int64_t logits_bytes, int chunks) {
    OperationCase op = linear_cross_entropy(one_document(tokens), 8, logits_bytes);
    op.roundings += chunks - 1;
    return op;
  };
  expect_like_reference(in_chunks(5, 1, 5));
  const std::int64_t row = (one_document(1).vocabulary * 2 + 127) / 128 * 128;  // bytes, in 16 bits
  constexpr DType kNarrow[] = {DType::bfloat16, DType::float16};
  expect_like_reference(in_chunks(kTile + 3, kTile * row, 2), kNarrow);
}

// Those that have a label are packed: as many as are counted, of which some may not be there.
TEST_F(GpuOperations, HeadOfFewLabelsIsLikeTheReference) {
  Layout layout = one_document(23);
  for (const std::int64_t every : {0, 2, 1000}) {  // most, some, none
    layout.label_every = every;
    for (const std::int64_t more : {0, 3}) {
      const std::int64_t counted = std::max<std::int64_t>(layout.valid_labels() + more, 1);
      SCOPED_TRACE(fmt::format("{} counted as {}", layout.valid_labels(), counted));
      expect_like_reference(linear_cross_entropy(layout, 40, device::kLogitsBytes, counted));
    }
  }
}

// 150 of them, in chunks of a tile less the room for what is packed.
TEST_F(GpuOperations, HeadOfFewLabelsIsLikeTheReferenceInChunks) {
  constexpr std::int64_t kTile = 128;
  Layout layout = one_document(300);
  layout.label_every = 2;
  const std::int64_t row = (layout.vocabulary * 2 + 127) / 128 * 128;  // bytes, in 16 bits
  OperationCase op = linear_cross_entropy(layout, 37, kTile * row, layout.valid_labels() + 3);
  op.roundings += 2;  // of three chunks
  constexpr DType kNarrow[] = {DType::bfloat16, DType::float16};
  expect_like_reference(op, kNarrow);
}

TEST_F(GpuOperations, MoreLabelsThanCountedShowInTheLoss) {
  const Layout layout = one_document(23);
  for (const DType dtype : kGpuTypes) {
    Session s(device(), dtype);
    const OperationCase op =
        linear_cross_entropy(layout, 40, device::kLogitsBytes, layout.valid_labels() - 1);
    EXPECT_TRUE(std::isnan(op.forward(s, op.inputs)[0].data[0]));
    EXPECT_TRUE(std::isnan(op.backward(s, op.inputs, {1, 1, {0.01}}, Accumulate::no).back().data[0]));
  }
}

// On a GPU nearly 2^31 of them, 4 GB: no algorithm that is chosen may count bytes in 32 bits.
TEST_F(GpuOperations, HeadWithAllLogitsAtOnceIsLikeInChunks) {
  const bool emulated = sums_are_float32();
  Layout layout = one_document(emulated ? 300 : 16384);
  layout.vocabulary = emulated ? 331 : 128256;
  const std::int64_t chunk = emulated ? 128 * 384 * 2 : device::kLogitsBytes, all = std::int64_t{1} << 40;
  device::Autotuner* const autotuner = device().autotuner();
  const auto results = [&](std::int64_t logits_bytes) {
    const OperationCase op = linear_cross_entropy(layout, 64, logits_bytes);
    const Values dy{1, 1, {1.0 / static_cast<double>(layout.tokens())}};
    std::vector<Values> last;
    for (const bool measures : {true, false}) {
      if (autotuner != nullptr) autotuner->measure(measures);  // which leaves anything in the results
      Session session(device(), DType::bfloat16);
      last = op.backward(session, op.inputs, dy, Accumulate::no);
    }
    return last;
  };
  const auto in_chunks = results(chunk), at_once = results(all);
  // A logit and its gradient are rounded; what is summed in other parts as well, to float32.
  expect_all_close(at_once, in_chunks, 4 * unit_roundoff(DType::bfloat16));
  if (autotuner != nullptr) autotuner->adopt({});
}

// Of a row that a warp looks at, and of one that a block looks at.
constexpr std::int64_t kNarrowAndWide[] = {331, 1025};

TEST_F(GpuOperations, RowsWithoutLabelsHaveNoGradient) {
  Layout layout = one_document(23);
  for (const std::int64_t vocabulary : kNarrowAndWide) {
    layout.vocabulary = vocabulary;
    for (const DType dtype : kGpuTypes) {
      Session s(device(), dtype);
      const OperationCase op = linear_cross_entropy(layout, 40);
      const std::vector<Values> gradients = op.backward(s, op.inputs, {1, 1, {0.01}}, Accumulate::no);
      for (std::int64_t t = 3; t < 23; t += 5) {
        for (std::int64_t i = 0; i < 40; ++i)
          ASSERT_EQ(gradients[0].data[static_cast<std::size_t>(t * 40 + i)], 0) << t;
      }
    }
  }
}

TEST_F(GpuOperations, BrokenNumbersShowInTheLoss) {
  Layout layout = one_document(7);
  for (const std::int64_t vocabulary : kNarrowAndWide) {
    layout.vocabulary = vocabulary;
    for (const DType dtype : kGpuTypes) {
      Session s(device(), dtype);
      OperationCase op = linear_cross_entropy(layout, 40);
      op.inputs[0].data[40] = std::nan("");
      EXPECT_TRUE(std::isnan(op.forward(s, op.inputs)[0].data[0]));
      op.inputs[0].data[40] = std::numeric_limits<double>::infinity();
      EXPECT_FALSE(std::isfinite(op.forward(s, op.inputs)[0].data[0]));
    }
  }
}

// The bits of a document do not depend on what else is in the batch.
TEST_F(GpuOperations, DocumentsDoNotTouchEachOther) {
  const device::AttentionShape shape{4, 2, 16};
  const OperationCase both = attention({"", {70, 33}}, shape);
  OperationCase second = attention(one_document(33), shape);
  second.inputs[0].data.assign(both.inputs[0].data.begin() + 70 * shape.qkv_cols(),
                               both.inputs[0].data.end());
  for (const DType dtype : kGpuTypes) {
    Session s(device(), dtype);
    Values expected = both.forward(s, both.inputs)[0];
    expected = {33, expected.cols, {expected.data.begin() + 70 * expected.cols, expected.data.end()}};
    EXPECT_TRUE(same_bits(second.forward(s, second.inputs)[0], expected)) << to_string(dtype);
  }
}

// Scores far apart: e^x underflows to zero, and nothing overflows. A score of 1000 that is summed of 16
// products in float32 is off by up to 1000 sqrt(16) roundings, and so are, relatively, the probabilities.
TEST_F(GpuOperations, LargeScoresDoNotOverflow) {
  OperationCase op = attention(one_document(65), {2, 1, 16});
  for (double& v : op.inputs[0].data) v *= 16;
  for (const DType dtype : kGpuTypes) {
    SCOPED_TRACE(to_string(dtype));
    const auto reference_device = device::make_reference_device();
    Session reference(*reference_device, DType::float64, Weights::trained, dtype), session(device(), dtype);
    const double scores = 4000 * kEpsilon;
    expect_all_close(op.forward(session, op.inputs), op.forward(reference, op.inputs),
                     scores + tolerance(op, dtype));
  }
}

}  // namespace
}  // namespace llampi::test
