// SPDX-License-Identifier: Apache-2.0
// The reference against its own definition: backward passes against finite differences of the forward passes,
// in float64.
#include <cmath>

#include "support/device_operations.hpp"

namespace llampi::test {
namespace {

double inner(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.data.size(); ++i) sum += a.data[i] * b.data[i];
  return sum;
}

/// inner(first output, dy) at inputs[index] + step * direction
double probe(const OperationCase& op, device::Device& device, std::vector<Values> inputs, std::size_t index,
             const Values& direction, double step, const Values& dy) {
  for (std::size_t i = 0; i < direction.data.size(); ++i) inputs[index].data[i] += step * direction.data[i];
  Session session(device, DType::float64);
  return inner(op.forward(session, inputs).front(), dy);
}

/// Central differences along random directions u: the error of (f(x + hu) - f(x - hu)) / 2h is h^2 f'''/6,
/// about 1e-10 for h = 1e-5 and sums of some thousand terms, plus cancellation, 2^-53 |f| / h, about 1e-9.
/// The derivative along a normal direction is about the norm of the gradient, by which the difference is
/// measured.
void expect_gradients_match(const OperationCase& op) {
  SCOPED_TRACE(op.name);
  constexpr double kStep = 1e-5, kTolerance = 1e-7;
  const auto device = device::make_reference_device();
  Session session(*device, DType::float64);
  const Values shape = op.forward(session, op.inputs).front();
  const Values dy = normal(shape.rows, shape.cols, "dy");
  const std::vector<Values> gradients = op.backward(session, op.inputs, dy, Accumulate::no);
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    SCOPED_TRACE(fmt::format("input {}", i));
    const double norm = std::sqrt(inner(gradients[i], gradients[i]));
    ASSERT_GT(norm, 0);
    for (int trial = 0; trial < 3; ++trial) {
      const Values direction =
          normal(op.inputs[i].rows, op.inputs[i].cols, fmt::format("direction {}", trial));
      const double difference = (probe(op, *device, op.inputs, i, direction, kStep, dy) -
                                 probe(op, *device, op.inputs, i, direction, -kStep, dy)) /
                                (2 * kStep);
      EXPECT_NEAR(difference, inner(gradients[i], direction), kTolerance * norm);
    }
  }
}

/// What is added to stays: with Accumulate::yes the result is the start value more.
void expect_accumulates(const OperationCase& op) {
  SCOPED_TRACE(op.name);
  const auto device = device::make_reference_device();
  Session session(*device, DType::float64);
  const Values shape = op.forward(session, op.inputs).front();
  const Values dy = normal(shape.rows, shape.cols, "dy");
  std::vector<Values> expected = op.backward(session, op.inputs, dy, Accumulate::no);
  const std::vector<Values> added = op.backward(session, op.inputs, dy, Accumulate::yes);
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    for (double& v : expected[i].data) v += op.accumulates[i] ? Session::kStart : 0;
    EXPECT_TRUE(close(added[i], expected[i], 1e-14));  // float64, one more addition
  }
}

std::vector<OperationCase> reference_operations() {
  const Layout mixed = mixed_documents(21);
  Layout small = mixed;
  small.vocabulary = 31;
  return {embedding(mixed, 12),
          rms_norm(9, 20),
          qkv_rope(mixed, 24, {4, 2, 8}),
          qkv_rope(mixed, 24, {4, 2, 8}, Transform::bias),
          qkv_rope(mixed, 24, {4, 2, 8}, Transform::norms),
          attention(one_document(13), {2, 2, 8}),
          attention(one_document(13), {2, 1, 8, 4}),
          attention(mixed, {4, 2, 6}),
          attention(mixed, {6, 2, 8}),
          attention(single_tokens(5), {3, 1, 4}),
          projection_residual(9, 20, 14),
          gate_up_swiglu(9, 20, 12),
          adapters(Adapted::qkv, mixed, 3, 0),
          adapters(Adapted::qkv, mixed, 3, 0.25),
          adapters(Adapted::projection, mixed, 1, 0.5),
          adapters(Adapted::gate_up, mixed, 4, 0.1),
          rope(mixed, {4, 2, 8}),
          rope(mixed, {4, 2, 8}, Transform::bias),
          rope(mixed, {4, 2, 8}, Transform::norms),
          swiglu(9, 12),
          linear_cross_entropy(small, 16),
          tied_head(small, 16)};
}

TEST(Reference, GradientsMatchFiniteDifferences) {
  for (const OperationCase& op : reference_operations()) expect_gradients_match(op);
}

TEST(Reference, GradientsAreAddedWhereAsked) {
  for (const OperationCase& op : reference_operations()) expect_accumulates(op);
}

TEST(Reference, HeadLossOfBackwardIsThatOfForward) {
  const OperationCase op = linear_cross_entropy(mixed_documents(21), 16);
  const auto device = device::make_reference_device();
  Session session(*device, DType::float64);
  EXPECT_EQ(op.forward(session, op.inputs)[0].data[0],
            op.backward(session, op.inputs, {1, 1, {0.1}}, Accumulate::no)[2].data[0]);
}

TEST(Reference, SwiGluAgainHasTheSameBits) {
  const auto device = device::make_reference_device();
  Session s(*device, DType::float64);
  const Tensor gate_up = s.output(9, 24), first = s.output(9, 12), again = s.output(9, 12);
  device->run(device::op::GateUpSwiglu{.x = s.upload(normal(9, 20, "x")),
                                       .weight = s.upload(normal(24, 20, "weight")),
                                       .gate_up = gate_up,
                                       .activated = first});
  device->run(device::op::Swiglu{.gate_up = gate_up, .activated = again});
  EXPECT_TRUE(same_bits(s.download(again), s.download(first)));
  EXPECT_GT(largest_magnitude(s.download(again)), 0);
}

// softmax by hand: two keys with scores 0 and s give weights 1/(1+e^s), e^s/(1+e^s).
TEST(Reference, AttentionOfTwoTokensIsTheFormulas) {
  const auto device = device::make_reference_device();
  Session s(*device, DType::float64);
  const device::AttentionShape shape{1, 1, 1};
  const Tensor qkv = s.upload({2, 3, {1, 0, 10, 2, 1.5, 20}});  // q, k, v of two tokens
  const Tensor out = s.output(2, 1), log_sum_exp = s.output(1, 2);
  device->run(device::op::Attention{.documents = documents_of(s.batch(one_document(2)), 2),
                                    .shape = shape,
                                    .qkv = qkv,
                                    .out = out,
                                    .log_sum_exp = log_sum_exp,
                                    .workspace = s.workspace(0)});
  const double e = std::exp(3.0);
  EXPECT_DOUBLE_EQ(out.as<double>()[0], 10);
  EXPECT_DOUBLE_EQ(out.as<double>()[1], (10 + 20 * e) / (1 + e));
  EXPECT_DOUBLE_EQ(log_sum_exp.as<double>()[1], std::log(1 + e));
}

TEST(Reference, RefusesOtherTypes) {
  const auto device = device::make_reference_device();
  Session s(*device, DType::float32);
  EXPECT_THROW(device->run(device::op::Add{.source = s.output(2, 3), .destination = s.output(2, 3)}), Error);
  EXPECT_THROW(
      device->run(device::op::Linear{.x = s.output(2, 3), .weight = s.output(4, 3), .y = s.output(2, 4)}),
      Error);
}

/// Tokens that come piece by piece see what they see when they come at once.
void expect_cached_attention_is_attention(const device::AttentionShape& shape) {
  const auto device = device::make_reference_device();
  Session s(*device, DType::float64);
  constexpr std::int32_t kTokens = 11;
  const Values qkv = normal(kTokens, shape.qkv_cols(), "qkv");
  const Tensor whole = s.upload(qkv), out = s.output(kTokens, shape.query_cols());
  device->run(device::op::Attention{.documents = documents_of(s.batch(one_document(kTokens)), kTokens),
                                    .shape = shape,
                                    .qkv = whole,
                                    .out = out,
                                    .log_sum_exp = s.output(shape.query_heads, kTokens),
                                    .workspace = {}});
  const Tensor cache = s.output(kTokens, 2 * shape.key_value_cols());
  std::int32_t kv_len = 0;
  for (const std::int32_t tokens : {3, 1, 1, 6}) {
    device::Batch batch = s.batch(one_document(tokens));
    batch.kv_len = kv_len;
    const Tensor part = s.output(tokens, shape.query_cols());
    device->run(device::op::CachedAttention{.kv_len = batch.kv_len,
                                            .shape = shape,
                                            .qkv = whole.slice_rows(kv_len, kv_len + tokens),
                                            .kv_cache = cache,
                                            .out = part,
                                            .workspace = {}});
    EXPECT_TRUE(close(s.download(part), s.download(out.slice_rows(kv_len, kv_len + tokens)), 1e-14))
        << kv_len;
    kv_len += tokens;
  }
}

TEST(Reference, CachedAttentionIsAttention) {
  expect_cached_attention_is_attention({4, 2, 6});
  for (const std::int64_t window : {1, 2, 5, 11}) expect_cached_attention_is_attention({4, 2, 6, window});
}

// With a window of one token each query sees itself alone.
TEST(Reference, AWindowOfOneTokenIsTheValue) {
  const auto device = device::make_reference_device();
  Session s(*device, DType::float64);
  const OperationCase op = attention(one_document(5), {1, 1, 2, 1});
  const Values out = op.forward(s, op.inputs)[0];
  for (std::size_t t = 0; t < 5; ++t) {
    for (std::size_t d = 0; d < 2; ++d)
      EXPECT_DOUBLE_EQ(out.data[t * 2 + d], op.inputs[0].data[t * 6 + 4 + d]);
  }
}

}  // namespace
}  // namespace llampi::test
