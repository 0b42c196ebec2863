// SPDX-License-Identifier: Apache-2.0
#include "support/device_operations.hpp"

#include <algorithm>
#include <cmath>

namespace llampi::test {
namespace {

using Inputs = std::vector<Values>;
constexpr double kNormEps = 1e-5;

Values scalar(double value) { return {1, 1, {value}}; }

/// A weight whose product with normal inputs is about normal.
Values weight(std::int64_t out, std::int64_t in, const std::string& purpose) {
  return normal(out, in, purpose, 1 / std::sqrt(static_cast<double>(in)));
}

}  // namespace

Values rope_table(std::int64_t positions, std::int64_t head_dim) {
  Values table{positions, head_dim, {}};
  for (std::int64_t position = 0; position < positions; ++position) {
    for (const bool sine : {false, true}) {
      for (std::int64_t j = 0; j < head_dim / 2; ++j) {
        const double frequency =
            std::pow(10000.0, -2.0 * static_cast<double>(j) / static_cast<double>(head_dim));
        const double angle = static_cast<double>(position) * frequency;
        table.data.push_back(
            static_cast<double>(static_cast<float>(sine ? std::sin(angle) : std::cos(angle))));
      }
    }
  }
  return table;
}

Values gradient_of_output(const OperationCase& op, const std::vector<Values>& outputs) {
  Values dy = normal(outputs[0].rows, outputs[0].cols, "dy");
  if (op.ends_in_loss) dy.data[0] = static_cast<double>(0.01F);
  return dy;
}

OperationCase embedding(const Layout& layout, std::int64_t hidden) {
  OperationCase result;
  result.name = "embedding, " + layout.name;
  result.inputs = {normal(layout.vocabulary, hidden, "table")};
  result.terms = layout.tokens();
  result.roundings = 0;
  result.accumulates = {true};
  result.forward = [=](Session& s, const Inputs& in) {
    const Tensor x = s.output(layout.tokens(), hidden);
    s.device().run(device::op::Embedding{.tokens = s.batch(layout).tokens, .table = s.upload(in[0]), .x = x});
    return Inputs{s.download(x)};
  };
  result.backward = [=](Session& s, const Inputs& in, const Values& dy, Accumulate accumulate) {
    const Tensor dtable = s.weight_gradient(in[0].rows, hidden, accumulate);
    s.device().run(device::op::EmbeddingBackward{.tokens = s.batch(layout).tokens,
                                                 .dx = s.upload(dy),
                                                 .dtable = dtable,
                                                 .accumulate_dtable = accumulate});
    return Inputs{s.download(dtable)};
  };
  return result;
}

namespace {

/// Of what is recomputed.
void expect_equal_bits(const Values& first, const Values& again) { EXPECT_EQ(first.data, again.data); }

}  // namespace

OperationCase rms_norm(std::int64_t tokens, std::int64_t hidden) {
  OperationCase result;
  result.name = "rms_norm";
  result.inputs = {normal(tokens, hidden, "x", 3), normal(1, hidden, "weight")};
  result.terms = std::max(tokens, hidden);
  result.roundings = 1;
  result.accumulates = {true, true};
  result.forward = [=](Session& s, const Inputs& in) {
    const Tensor y = s.output(tokens, hidden), inverse_rms = s.wide_output(1, tokens);
    s.device().run(device::op::RmsNorm{.x = s.upload(in[0]),
                                       .weight = s.upload(in[1]),
                                       .eps = kNormEps,
                                       .y = y,
                                       .inverse_rms = inverse_rms});
    return Inputs{s.download(y), s.download(inverse_rms)};
  };
  result.backward = [=](Session& s, const Inputs& in, const Values& dy, Accumulate accumulate) {
    const Tensor x = s.upload(in[0]), w = s.upload(in[1]), inverse_rms = s.wide_output(1, tokens);
    const Tensor y = s.output(tokens, hidden), again = s.output(tokens, hidden);
    const bool writes_y = accumulate == Accumulate::yes;
    s.device().run(
        device::op::RmsNorm{.x = x, .weight = w, .eps = kNormEps, .y = y, .inverse_rms = inverse_rms});
    const Tensor dx = s.gradient(tokens, hidden, accumulate), dw = s.weight_gradient(1, hidden, accumulate);
    const Tensor scratch =
        s.workspace(s.device().sizes().rms_norm_backward_workspace(tokens, hidden, s.dtype()));
    s.device().run(device::op::RmsNormBackward{.dy = s.upload(dy),
                                               .x = x,
                                               .weight = w,
                                               .inverse_rms = inverse_rms,
                                               .dx = dx,
                                               .accumulate_dx = accumulate,
                                               .dweight = dw,
                                               .accumulate_dweight = accumulate,
                                               .workspace = scratch,
                                               .y = writes_y ? again : Tensor{}});
    if (writes_y) expect_equal_bits(s.download(y), s.download(again));
    return Inputs{s.download(dx), s.download(dw)};
  };
  return result;
}

namespace {

/// The weights of a transform, as inputs of a case.
Inputs transform_weights(device::AttentionShape shape, Transform transform) {
  if (transform == Transform::bias) return {normal(1, shape.qkv_cols(), "bias")};
  if (transform == Transform::norms)
    return {normal(1, shape.head_dim, "q_norm"), normal(1, shape.head_dim, "k_norm")};
  return {};
}

/// A transform with its weights, the inputs from `first` on, and memory for what it keeps.
struct TransformOperands {
  TransformOperands(Session& s, device::AttentionShape shape, std::int64_t tokens, Transform transform,
                    const Inputs& in, std::size_t first) {
    operands.eps = kNormEps;
    if (transform == Transform::bias) operands.bias = s.upload(in[first]);
    if (transform != Transform::norms) return;
    operands.q_norm = s.upload(in[first]);
    operands.k_norm = s.upload(in[first + 1]);
    operands.product = s.output(tokens, shape.qkv_cols());
    operands.inverse_rms = s.wide_output(tokens, shape.query_heads + shape.key_value_heads);
  }
  device::op::QkvTransform operands;
};

device::op::QkvTransformGradients transform_gradients(Session& s, device::AttentionShape shape,
                                                      std::int64_t tokens, Transform transform,
                                                      Accumulate accumulate) {
  device::op::QkvTransformGradients gradients{
      .accumulate_bias = accumulate, .accumulate_q_norm = accumulate, .accumulate_k_norm = accumulate};
  if (transform == Transform::bias) gradients.bias = s.weight_gradient(1, shape.qkv_cols(), accumulate);
  if (transform == Transform::norms) {
    gradients.q_norm = s.weight_gradient(1, shape.head_dim, accumulate);
    gradients.k_norm = s.weight_gradient(1, shape.head_dim, accumulate);
  }
  gradients.workspace =
      s.workspace(s.device().sizes().qkv_transform_backward_workspace(shape, tokens, s.dtype()));
  return gradients;
}

void append_gradients(Session& s, const device::op::QkvTransformGradients& gradients, Transform transform,
                      Inputs& results) {
  if (transform == Transform::bias) results.push_back(s.download(gradients.bias));
  if (transform == Transform::norms) {
    results.push_back(s.download(gradients.q_norm));
    results.push_back(s.download(gradients.k_norm));
  }
}

/// From the gradient of qkv to that of the product, in place.
void rotate_back(Session& s, const Layout& layout, const Values& table, device::AttentionShape shape,
                 const Tensor& dqkv, const device::op::QkvTransform& transform = {},
                 const device::op::QkvTransformGradients& gradients = {}) {
  s.device().run(device::op::Rope{.positions = s.batch(layout).positions,
                                  .rope = s.upload_wide(table),
                                  .shape = shape,
                                  .backward = true,
                                  .qkv = dqkv,
                                  .transform = transform,
                                  .dtransform = gradients});
}

const char* name_of(Transform transform) {
  if (transform == Transform::none) return "";
  return transform == Transform::bias ? ", bias" : ", norms";
}

}  // namespace

OperationCase qkv_rope(const Layout& layout, std::int64_t hidden, device::AttentionShape shape,
                       Transform transform) {
  const std::int64_t tokens = layout.tokens(), out = shape.qkv_cols();
  const Values table = rope_table(layout.longest() + 2, shape.head_dim);
  OperationCase result;
  result.name = "qkv_rope, " + layout.name + name_of(transform);
  result.inputs = {normal(tokens, hidden, "x")};
  for (const Values& weights : transform_weights(shape, transform)) result.inputs.push_back(weights);
  result.inputs.push_back(weight(out, hidden, "weight"));
  result.weights = result.inputs.size() - 1;
  result.terms = std::max({tokens * (transform == Transform::norms ? shape.query_heads : 1), hidden, out});
  // A norm's input is kept in between; the gradient of its weight, and of it, is made of it and of what arrives.
  result.roundings = transform == Transform::norms ? 4 : 2;
  result.accumulates.assign(result.inputs.size(), true);
  result.accumulates[0] = false;
  result.forward = [=](Session& s, const Inputs& in) {
    const Tensor qkv = s.output(tokens, out);
    const TransformOperands transformed(s, shape, tokens, transform, in, 1);
    s.device().run(device::op::QkvRope{.positions = s.batch(layout).positions,
                                       .x = s.upload(in[0]),
                                       .weight = s.upload(in.back()),
                                       .rope = s.upload_wide(table),
                                       .shape = shape,
                                       .qkv = qkv,
                                       .transform = transformed.operands});
    Inputs results{s.download(qkv)};
    if (transform != Transform::norms) return results;
    results.push_back(s.download(transformed.operands.product));
    results.push_back(s.download(transformed.operands.inverse_rms));
    return results;
  };
  result.backward = [=](Session& s, const Inputs& in, const Values& dy, Accumulate accumulate) {
    const Tensor dx = s.output(tokens, hidden), dw = s.weight_gradient(out, hidden, accumulate);
    const Tensor dqkv = s.upload(dy), x = s.upload(in[0]), w = s.upload(in.back());
    const TransformOperands transformed(s, shape, tokens, transform, in, 1);
    if (transform == Transform::norms) {
      s.device().run(device::op::QkvRope{.positions = s.batch(layout).positions,
                                         .x = x,
                                         .weight = w,
                                         .rope = s.upload_wide(table),
                                         .shape = shape,
                                         .qkv = s.output(tokens, out),
                                         .transform = transformed.operands});
    }
    const auto gradients = transform_gradients(s, shape, tokens, transform, accumulate);
    rotate_back(s, layout, table, shape, dqkv, transformed.operands, gradients);
    s.device().run(device::op::InputGradient{.dy = dqkv, .weight = w, .dx = dx});
    s.device().run(
        device::op::WeightGradient{.dy = dqkv, .x = x, .dweight = dw, .accumulate_dweight = accumulate});
    Inputs results{s.download(dx)};
    append_gradients(s, gradients, transform, results);
    results.push_back(s.download(dw));
    results.push_back(s.download(dqkv));
    return results;
  };
  return result;
}

OperationCase rope(const Layout& layout, device::AttentionShape shape, Transform transform) {
  const std::int64_t tokens = layout.tokens();
  const Values table = rope_table(layout.longest() + 2, shape.head_dim);
  OperationCase result;
  result.name = fmt::format("rope, {}, heads of {}{}", layout.name, shape.head_dim, name_of(transform));
  result.inputs = {normal(tokens, shape.qkv_cols(), "qkv")};
  for (const Values& weights : transform_weights(shape, transform)) result.inputs.push_back(weights);
  result.weights = result.inputs.size() - 1;
  result.terms = transform == Transform::none ? 2 : std::max(tokens * shape.query_heads, shape.head_dim);
  result.roundings = transform == Transform::norms ? 2 : 1;
  result.accumulates.assign(result.inputs.size(), true);
  result.accumulates[0] = false;
  const auto forward = [=](Session& s, const Inputs& in, TransformOperands& transformed) {
    const Tensor values = s.upload(in[0]);
    Tensor qkv = values;
    if (transform == Transform::norms) {
      transformed.operands.product = values;
      qkv = s.output(tokens, shape.qkv_cols());
    }
    s.device().run(device::op::Rope{.positions = s.batch(layout).positions,
                                    .rope = s.upload_wide(table),
                                    .shape = shape,
                                    .backward = false,
                                    .qkv = qkv,
                                    .transform = transformed.operands});
    return s.download(qkv);
  };
  result.forward = [=](Session& s, const Inputs& in) {
    TransformOperands transformed(s, shape, tokens, transform, in, 1);
    return Inputs{forward(s, in, transformed)};
  };
  result.backward = [=](Session& s, const Inputs& in, const Values& dy, Accumulate accumulate) {
    TransformOperands transformed(s, shape, tokens, transform, in, 1);
    forward(s, in, transformed);
    const Tensor dqkv = s.upload(dy);
    const auto gradients = transform_gradients(s, shape, tokens, transform, accumulate);
    rotate_back(s, layout, table, shape, dqkv, transformed.operands, gradients);
    Inputs results{s.download(dqkv)};
    append_gradients(s, gradients, transform, results);
    return results;
  };
  return result;
}

OperationCase attention(const Layout& layout, device::AttentionShape shape, std::int64_t attention_room) {
  const std::int64_t tokens = layout.tokens(), longest = std::max(layout.longest(), layout.seq_len);
  OperationCase result;
  result.name = fmt::format("attention, {}, {} heads over {} of {}, window {}", layout.name,
                            shape.query_heads, shape.key_value_heads, shape.head_dim, shape.window);
  result.inputs = {normal(tokens, shape.qkv_cols(), "qkv")};
  result.terms = std::max(longest * (shape.query_heads / shape.key_value_heads), shape.head_dim);
  result.roundings = 2;
  result.weights = 0;
  result.accumulates = {false};
  const auto run_forward = [=](Session& s, const device::Batch& batch, Tensor qkv, Tensor out,
                               Tensor log_sum_exp) {
    const Tensor scratch =
        s.workspace(s.device().sizes().attention_workspace(shape, tokens, longest, s.dtype()));
    s.device().run(device::op::Attention{.documents = documents_of(batch, longest),
                                         .shape = shape,
                                         .qkv = qkv,
                                         .out = out,
                                         .log_sum_exp = log_sum_exp,
                                         .workspace = scratch});
  };
  result.forward = [=](Session& s, const Inputs& in) {
    const Tensor out = s.output(tokens, shape.query_cols()),
                 log_sum_exp = s.wide_output(shape.query_heads, tokens);
    run_forward(s, s.batch(layout), s.upload(in[0]), out, log_sum_exp);
    return Inputs{s.download(out), s.download(log_sum_exp)};
  };
  result.backward = [=](Session& s, const Inputs& in, const Values& dy, Accumulate) {
    const device::Batch batch = s.batch(layout);
    const Tensor qkv = s.upload(in[0]), dqkv = s.output(tokens, shape.qkv_cols());
    const Tensor out = s.output(tokens, shape.query_cols()),
                 log_sum_exp = s.wide_output(shape.query_heads, tokens);
    run_forward(s, batch, qkv, out, log_sum_exp);
    const Tensor scratch = s.workspace(
        s.device().sizes().attention_backward_workspace(shape, tokens, longest, s.dtype(), attention_room));
    s.device().run(device::op::AttentionBackward{.documents = documents_of(batch, longest),
                                                 .shape = shape,
                                                 .dout = s.upload(dy),
                                                 .qkv = qkv,
                                                 .out = out,
                                                 .log_sum_exp = log_sum_exp,
                                                 .dqkv = dqkv,
                                                 .workspace = scratch,
                                                 .attention_room = attention_room});
    return Inputs{s.download(dqkv)};
  };
  return result;
}

OperationCase cached_attention(std::int64_t kv_len, std::int64_t tokens, device::AttentionShape shape) {
  const std::int64_t context = kv_len + tokens + 3, columns = 2 * shape.key_value_cols();
  OperationCase result;
  result.name = fmt::format("cached_attention, {} after {}, {} heads over {} of {}, window {}", tokens,
                            kv_len, shape.query_heads, shape.key_value_heads, shape.head_dim, shape.window);
  result.inputs = {normal(tokens, shape.qkv_cols(), "qkv"), normal(kv_len, columns, "cache")};
  result.terms = std::max(kv_len + tokens, shape.head_dim);
  result.roundings = 2;
  result.forward = [=](Session& s, const Inputs& in) {
    Layout layout = one_document(static_cast<std::int32_t>(tokens));
    device::Batch batch = s.batch(layout);
    batch.kv_len = kv_len;
    Values filled{context, columns, std::vector<double>(static_cast<std::size_t>(context * columns), 0.5)};
    std::copy(in[1].data.begin(), in[1].data.end(), filled.data.begin());
    const Tensor cache = s.upload(filled), out = s.output(tokens, shape.query_cols());
    const Tensor scratch =
        s.workspace(s.device().sizes().attention_workspace(shape, tokens, context, s.dtype()));
    s.device().run(device::op::CachedAttention{.kv_len = batch.kv_len,
                                               .shape = shape,
                                               .qkv = s.upload(in[0]),
                                               .kv_cache = cache,
                                               .out = out,
                                               .workspace = scratch});
    return Inputs{s.download(out), s.download(cache)};
  };
  return result;
}

OperationCase projection_residual(std::int64_t tokens, std::int64_t in_cols, std::int64_t out) {
  OperationCase result;
  result.name = "projection_residual";
  result.inputs = {normal(tokens, in_cols, "x"), weight(out, in_cols, "weight")};
  result.terms = std::max({tokens, in_cols, out});
  result.roundings = 1;
  result.accumulates = {false, true};
  const Values residual = normal(tokens, out, "residual");
  result.forward = [=](Session& s, const Inputs& in) {
    const Tensor y = s.output(tokens, out), in_place = s.upload(residual);
    s.device().run(device::op::ProjectionResidual{
        .x = s.upload(in[0]), .weight = s.upload(in[1]), .residual = s.upload(residual), .y = y});
    s.device().run(device::op::ProjectionResidual{
        .x = s.upload(in[0]), .weight = s.upload(in[1]), .residual = in_place, .y = in_place});
    return Inputs{s.download(y), s.download(in_place)};
  };
  result.backward = [=](Session& s, const Inputs& in, const Values& dy, Accumulate accumulate) {
    const Tensor dx = s.output(tokens, in_cols), dw = s.weight_gradient(out, in_cols, accumulate);
    s.device().run(device::op::InputGradient{.dy = s.upload(dy), .weight = s.upload(in[1]), .dx = dx});
    s.device().run(device::op::WeightGradient{
        .dy = s.upload(dy), .x = s.upload(in[0]), .dweight = dw, .accumulate_dweight = accumulate});
    return Inputs{s.download(dx), s.download(dw)};
  };
  return result;
}

OperationCase gate_up_swiglu(std::int64_t tokens, std::int64_t hidden, std::int64_t width) {
  OperationCase result;
  result.name = "gate_up_swiglu";
  result.inputs = {normal(tokens, hidden, "x"), weight(2 * width, hidden, "weight")};
  result.terms = std::max({tokens, hidden, 2 * width});
  result.roundings = 3;
  result.accumulates = {false, true};
  result.forward = [=](Session& s, const Inputs& in) {
    const Tensor gate_up = s.output(tokens, 2 * width), activated = s.output(tokens, width);
    s.device().run(device::op::GateUpSwiglu{
        .x = s.upload(in[0]), .weight = s.upload(in[1]), .gate_up = gate_up, .activated = activated});
    return Inputs{s.download(activated), s.download(gate_up)};
  };
  result.backward = [=](Session& s, const Inputs& in, const Values& dy, Accumulate accumulate) {
    const Tensor x = s.upload(in[0]), w = s.upload(in[1]), gate_up = s.output(tokens, 2 * width);
    s.device().run(device::op::GateUpSwiglu{
        .x = x, .weight = w, .gate_up = gate_up, .activated = s.output(tokens, width)});
    const Tensor dx = s.output(tokens, hidden), dw = s.weight_gradient(2 * width, hidden, accumulate);
    s.device().run(device::op::SwigluBackward{.dactivated = s.upload(dy), .gate_up = gate_up});
    s.device().run(device::op::InputGradient{.dy = gate_up, .weight = w, .dx = dx});
    s.device().run(
        device::op::WeightGradient{.dy = gate_up, .x = x, .dweight = dw, .accumulate_dweight = accumulate});
    return Inputs{s.download(dx), s.download(dw), s.download(gate_up)};
  };
  return result;
}

namespace {

/// The adapters of a case in a session, and what they write.
struct SessionAdapters {
  std::vector<device::LowRank> list;
  Inputs gradients(Session& s) const {
    Inputs result;
    for (const auto& l : list) {
      result.push_back(s.download(l.da));
      result.push_back(s.download(l.db));
    }
    return result;
  }
};

}  // namespace

OperationCase adapters(Adapted adapted, const Layout& layout, std::int64_t rank, double dropout) {
  constexpr device::AttentionShape kShape{3, 1, 8};
  const std::int64_t tokens = layout.tokens(), width = 21;
  const std::int64_t in_cols = adapted == Adapted::projection ? 40 : 43;
  struct Place {
    std::int64_t first, out;
  };
  std::vector<Place> places = {{0, kShape.query_cols()}, {kShape.query_cols() + kShape.key_value_cols(), 8}};
  std::int64_t out = kShape.qkv_cols();
  if (adapted == Adapted::projection) out = 37, places = {{0, out}};
  if (adapted == Adapted::gate_up) out = 2 * width, places = {{0, width}, {width, width}};
  const Values table = rope_table(layout.longest() + 2, kShape.head_dim),
               residual = normal(tokens, out, "residual"), base = weight(out, in_cols, "weight");
  OperationCase result;
  constexpr const char* kNames[] = {"qkv_rope", "projection_residual", "gate_up_swiglu"};
  result.name = fmt::format("{} with adapters of rank {}, dropout {}, {}", kNames[static_cast<int>(adapted)],
                            rank, dropout, layout.name);
  result.inputs = {normal(tokens, in_cols, "x")};
  result.accumulates = {false};
  for (const auto& place : places) {
    result.inputs.push_back(weight(rank, in_cols, fmt::format("a {}", place.first)));
    result.inputs.push_back(weight(place.out, rank, fmt::format("b {}", place.first)));
    result.accumulates.insert(result.accumulates.end(), {true, true});
  }
  result.terms = std::max({tokens, in_cols, out});
  result.roundings = 6;
  result.weights = 0;
  const auto make = [=](Session& s, const Inputs& in, bool backward, Accumulate accumulate) {
    SessionAdapters made;
    for (std::size_t i = 0; i < places.size(); ++i) {
      device::LowRank l{.a = s.upload(in[1 + 2 * i]),
                        .b = s.upload(in[2 + 2 * i]),
                        .u = s.output(tokens, rank),
                        .first = places[i].first,
                        .scale = 1.75};
      if (dropout > 0) {
        l.dropout = {.probability = dropout,
                     .key = kSeed,
                     .purpose = 77 + i,
                     .first_sample = s.integers({-5, 3}),
                     .seq_len = layout.longest(),
                     .dropped = s.output(tokens, in_cols)};
      }
      if (backward) {
        l.du = s.output(tokens, rank);
        l.da = s.weight_gradient(rank, in_cols, accumulate);
        l.db = s.weight_gradient(places[i].out, rank, accumulate);
        l.accumulate_da = l.accumulate_db = accumulate;
      }
      made.list.push_back(l);
    }
    return made;
  };
  const auto run = [=](Session& s, const Inputs& in, const SessionAdapters& made, Tensor y) {
    const Tensor x = s.upload(in[0]), w = s.upload(base);
    if (adapted == Adapted::qkv) {
      s.device().run(device::op::QkvRope{.positions = s.batch(layout).positions,
                                         .x = x,
                                         .weight = w,
                                         .rope = s.upload_wide(table),
                                         .shape = kShape,
                                         .qkv = y,
                                         .adapters = made.list});
    } else if (adapted == Adapted::projection) {
      s.device().run(device::op::ProjectionResidual{
          .x = x, .weight = w, .residual = s.upload(residual), .y = y, .adapters = made.list});
    } else {
      s.device().run(device::op::GateUpSwiglu{
          .x = x, .weight = w, .gate_up = y, .activated = s.output(tokens, width), .adapters = made.list});
    }
  };
  result.forward = [=](Session& s, const Inputs& in) {
    const Tensor y = s.output(tokens, out);
    const SessionAdapters made = make(s, in, false, Accumulate::no),
                          alone = make(s, in, false, Accumulate::no);
    run(s, in, made, y);
    s.device().run(device::op::LowRankDown{.x = s.upload(in[0]), .adapters = alone.list});
    Inputs outputs{s.download(y)};
    for (const auto& l : made.list) outputs.push_back(s.download(l.u));
    for (const auto& l : alone.list) outputs.push_back(s.download(l.u));
    if (adapted == Adapted::gate_up) {  // the gradient arrives at what is activated
      const Tensor activated = s.output(tokens, width);
      s.device().run(device::op::Swiglu{.gate_up = y, .activated = activated});
      outputs.insert(outputs.begin(), s.download(activated));
    }
    return outputs;
  };
  result.backward = [=](Session& s, const Inputs& in, const Values& dy_, Accumulate accumulate) {
    const SessionAdapters made = make(s, in, true, accumulate);
    const Tensor y = s.output(tokens, out), dx = s.output(tokens, in_cols), dy = s.upload(dy_);
    run(s, in, made, y);
    Tensor gradient = dy;
    if (adapted == Adapted::qkv) {
      rotate_back(s, layout, table, kShape, dy);
    } else if (adapted == Adapted::gate_up) {
      s.device().run(device::op::SwigluBackward{.dactivated = dy, .gate_up = y});
      gradient = y;
    }
    s.device().run(
        device::op::InputGradient{.dy = gradient, .weight = s.upload(base), .dx = dx, .adapters = made.list});
    s.device().run(device::op::WeightGradient{.dy = gradient,
                                              .x = s.upload(in[0]),
                                              .dweight = {},
                                              .accumulate_dweight = Accumulate::no,
                                              .adapters = made.list});
    Inputs results = made.gradients(s);
    results.insert(results.begin(), s.download(dx));
    return results;
  };
  return result;
}

OperationCase swiglu(std::int64_t tokens, std::int64_t width) {
  OperationCase result;
  result.name = "swiglu";
  result.inputs = {normal(tokens, 2 * width, "gate_up")};
  result.terms =
      64;  // no sum: an exponential, which GPUs have to some units of the last place, and ten roundings
  result.accumulates = {false};
  result.weights = 0;
  result.forward = [=](Session& s, const Inputs& in) {
    const Tensor activated = s.output(tokens, width);
    s.device().run(device::op::Swiglu{.gate_up = s.upload(in[0]), .activated = activated});
    return Inputs{s.download(activated)};
  };
  result.backward = [=](Session& s, const Inputs& in, const Values& dy, Accumulate) {
    const Tensor gate_up = s.upload(in[0]), activated = s.output(tokens, width),
                 again = s.output(tokens, width);
    s.device().run(device::op::Swiglu{.gate_up = gate_up, .activated = activated});
    s.device().run(
        device::op::SwigluBackward{.dactivated = s.upload(dy), .gate_up = gate_up, .activated = again});
    expect_equal_bits(s.download(activated), s.download(again));
    return Inputs{s.download(gate_up)};
  };
  return result;
}

OperationCase linear_cross_entropy(const Layout& layout, std::int64_t hidden, std::int64_t logits_bytes,
                                   std::int64_t valid_labels) {
  const std::int64_t tokens = layout.tokens(), vocabulary = layout.vocabulary;
  OperationCase result;
  result.name = "linear_cross_entropy";
  result.ends_in_loss = true;
  result.inputs = {normal(tokens, hidden, "x"), weight(vocabulary, hidden, "weight")};
  result.terms = std::max({tokens, hidden, vocabulary});
  result.roundings = 3;
  result.accumulates = {false, true};
  result.forward = [=](Session& s, const Inputs& in) {
    const OnDevice<double> loss(s, 0);
    const Tensor scratch = s.workspace(
        s.device().sizes().linear_cross_entropy_workspace(tokens, vocabulary, s.dtype(), logits_bytes));
    s.device().run(device::op::LinearCrossEntropy{.labels = s.batch(layout).labels,
                                                  .x = s.upload(in[0]),
                                                  .weight = s.upload(in[1]),
                                                  .loss_sum = loss.get(),
                                                  .workspace = scratch,
                                                  .logits_bytes = logits_bytes,
                                                  .valid_labels = valid_labels});
    return Inputs{scalar(loss.read())};
  };
  result.backward = [=](Session& s, const Inputs& in, const Values& dy, Accumulate accumulate) {
    const OnDevice<double> loss(s, 0), inverse_tokens(s, dy.data[0]);
    const Tensor dx = s.output(tokens, hidden), dw = s.weight_gradient(vocabulary, hidden, accumulate);
    const Tensor scratch = s.workspace(
        s.device().sizes().linear_cross_entropy_workspace(tokens, vocabulary, s.dtype(), logits_bytes));
    s.device().run(device::op::LinearCrossEntropyBackward{.labels = s.batch(layout).labels,
                                                          .x = s.upload(in[0]),
                                                          .weight = s.upload(in[1]),
                                                          .inverse_tokens = inverse_tokens.get(),
                                                          .loss_sum = loss.get(),
                                                          .dx = dx,
                                                          .dweight = dw,
                                                          .accumulate_dweight = accumulate,
                                                          .workspace = scratch,
                                                          .logits_bytes = logits_bytes,
                                                          .valid_labels = valid_labels});
    return Inputs{s.download(dx), s.download(dw), scalar(loss.read())};
  };
  return result;
}

OperationCase tied_head(const Layout& layout, std::int64_t hidden) {
  const std::int64_t tokens = layout.tokens(), vocabulary = layout.vocabulary;
  OperationCase result;
  result.name = "tied_head";
  result.ends_in_loss = true;
  result.inputs = {normal(vocabulary, hidden, "table", 0.3)};
  result.terms = std::max({tokens, hidden, vocabulary});
  result.roundings = 3;
  result.weights = 0;
  result.accumulates = {true};
  result.forward = [=](Session& s, const Inputs& in) {
    const OnDevice<double> loss(s, 0);
    const device::Batch batch = s.batch(layout);
    const Tensor table = s.upload(in[0]), x = s.output(tokens, hidden);
    s.device().run(device::op::Embedding{.tokens = batch.tokens, .table = table, .x = x});
    const Tensor scratch = s.workspace(s.device().sizes().linear_cross_entropy_workspace(
        tokens, vocabulary, s.dtype(), device::kLogitsBytes));
    s.device().run(device::op::LinearCrossEntropy{
        .labels = batch.labels, .x = x, .weight = table, .loss_sum = loss.get(), .workspace = scratch});
    return Inputs{scalar(loss.read())};
  };
  result.backward = [=](Session& s, const Inputs& in, const Values& dy, Accumulate accumulate) {
    const OnDevice<double> loss(s, 0), inverse_tokens(s, dy.data[0]);
    const device::Batch batch = s.batch(layout);
    const Tensor table = s.upload(in[0]), x = s.output(tokens, hidden), dx = s.output(tokens, hidden);
    s.device().run(device::op::Embedding{.tokens = batch.tokens, .table = table, .x = x});
    const Tensor dtable = s.weight_gradient(vocabulary, hidden, accumulate);
    const Tensor scratch = s.workspace(s.device().sizes().linear_cross_entropy_workspace(
        tokens, vocabulary, s.dtype(), device::kLogitsBytes));
    s.device().run(device::op::LinearCrossEntropyBackward{.labels = batch.labels,
                                                          .x = x,
                                                          .weight = table,
                                                          .inverse_tokens = inverse_tokens.get(),
                                                          .loss_sum = loss.get(),
                                                          .dx = dx,
                                                          .dweight = dtable,
                                                          .accumulate_dweight = accumulate,
                                                          .workspace = scratch});
    s.device().run(device::op::EmbeddingBackward{
        .tokens = batch.tokens, .dx = dx, .dtable = dtable, .accumulate_dtable = Accumulate::yes});
    return Inputs{s.download(dtable)};
  };
  return result;
}

OperationCase linear(std::int64_t tokens, std::int64_t in_cols, std::int64_t out) {
  OperationCase result;
  result.name = "linear";
  result.inputs = {normal(tokens, in_cols, "x"), weight(out, in_cols, "weight")};
  result.terms = in_cols;
  result.roundings = 1;
  result.forward = [=](Session& s, const Inputs& in) {
    const Tensor y = s.output(tokens, out);
    s.device().run(device::op::Linear{.x = s.upload(in[0]), .weight = s.upload(in[1]), .y = y});
    return Inputs{s.download(y)};
  };
  return result;
}

}  // namespace llampi::test
