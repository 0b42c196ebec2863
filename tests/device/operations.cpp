// SPDX-License-Identifier: Apache-2.0
#include "device/operations.hpp"

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

Operation embedding(const Layout& layout, std::int64_t hidden) {
  Operation op;
  op.name = "embedding, " + layout.name;
  op.inputs = {normal(layout.vocabulary, hidden, "table")};
  op.terms = layout.tokens();
  op.roundings = 0;
  op.accumulates = {true};
  op.forward = [=](Session& s, const Inputs& in) {
    const Tensor x = s.output(layout.tokens(), hidden);
    s.device().embedding(s.batch(layout), s.upload(in[0]), x);
    return Inputs{s.download(x)};
  };
  op.backward = [=](Session& s, const Inputs& in, const Values& dy, device::Accumulate accumulate) {
    const Tensor dtable = s.weight_gradient(in[0].rows, hidden, accumulate);
    s.device().embedding_backward(s.batch(layout), s.upload(dy), dtable, accumulate);
    return Inputs{s.download(dtable)};
  };
  return op;
}

Operation rms_norm(std::int64_t tokens, std::int64_t hidden) {
  Operation op;
  op.name = "rms_norm";
  op.inputs = {normal(tokens, hidden, "x", 3), normal(1, hidden, "weight")};
  op.terms = std::max(tokens, hidden);
  op.roundings = 1;
  op.accumulates = {true, true};
  op.forward = [=](Session& s, const Inputs& in) {
    const Tensor y = s.output(tokens, hidden), inverse_rms = s.wide_output(1, tokens);
    s.device().rms_norm(s.upload(in[0]), s.upload(in[1]), kNormEps, y, inverse_rms);
    return Inputs{s.download(y), s.download(inverse_rms)};
  };
  op.backward = [=](Session& s, const Inputs& in, const Values& dy, device::Accumulate accumulate) {
    const Tensor x = s.upload(in[0]), w = s.upload(in[1]), inverse_rms = s.wide_output(1, tokens);
    s.device().rms_norm(x, w, kNormEps, s.output(tokens, hidden), inverse_rms);
    const Tensor dx = s.gradient(tokens, hidden, accumulate), dw = s.weight_gradient(1, hidden, accumulate);
    const Tensor scratch = s.workspace(s.device().rms_norm_backward_workspace(tokens, hidden, s.dtype()));
    s.device().rms_norm_backward(s.upload(dy), x, w, inverse_rms, dx, accumulate, dw, accumulate, scratch);
    return Inputs{s.download(dx), s.download(dw)};
  };
  return op;
}

Operation qkv_rope(const Layout& layout, std::int64_t hidden, device::AttentionShape shape) {
  const std::int64_t tokens = layout.tokens(), out = shape.qkv_cols();
  const Values table = rope_table(layout.longest() + 2, shape.head_dim);
  Operation op;
  op.name = "qkv_rope, " + layout.name;
  op.inputs = {normal(tokens, hidden, "x"), weight(out, hidden, "weight")};
  op.terms = std::max({tokens, hidden, out});
  op.roundings = 2;
  op.accumulates = {false, true};
  op.forward = [=](Session& s, const Inputs& in) {
    const Tensor qkv = s.output(tokens, out);
    s.device().qkv_rope(s.batch(layout), s.upload(in[0]), s.upload(in[1]), s.upload_wide(table), shape, qkv);
    return Inputs{s.download(qkv)};
  };
  op.backward = [=](Session& s, const Inputs& in, const Values& dy, device::Accumulate accumulate) {
    const Tensor dx = s.output(tokens, hidden), dw = s.weight_gradient(out, hidden, accumulate);
    const Tensor dqkv = s.upload(dy);
    s.device().qkv_rope_backward(s.batch(layout), dqkv, s.upload(in[0]), s.upload(in[1]),
                                 s.upload_wide(table), shape, dx, dw, accumulate);
    return Inputs{s.download(dx), s.download(dw), s.download(dqkv)};
  };
  return op;
}

Operation attention(const Layout& layout, device::AttentionShape shape) {
  const std::int64_t tokens = layout.tokens(), longest = layout.longest();
  Operation op;
  op.name = fmt::format("attention, {}, {} heads over {} of {}", layout.name, shape.query_heads,
                        shape.key_value_heads, shape.head_dim);
  op.inputs = {normal(tokens, shape.qkv_cols(), "qkv")};
  op.terms = std::max(longest * (shape.query_heads / shape.key_value_heads), shape.head_dim);
  op.roundings = 2;
  op.accumulates = {false};
  const auto run_forward = [=](Session& s, const device::Batch& batch, Tensor qkv, Tensor out,
                               Tensor log_sum_exp) {
    const Tensor scratch = s.workspace(s.device().attention_workspace(shape, tokens, longest, s.dtype()));
    s.device().attention(batch, longest, shape, qkv, out, log_sum_exp, scratch);
  };
  op.forward = [=](Session& s, const Inputs& in) {
    const Tensor out = s.output(tokens, shape.query_cols()),
                 log_sum_exp = s.wide_output(shape.query_heads, tokens);
    run_forward(s, s.batch(layout), s.upload(in[0]), out, log_sum_exp);
    return Inputs{s.download(out), s.download(log_sum_exp)};
  };
  op.backward = [=](Session& s, const Inputs& in, const Values& dy, device::Accumulate) {
    const device::Batch batch = s.batch(layout);
    const Tensor qkv = s.upload(in[0]), dqkv = s.output(tokens, shape.qkv_cols());
    const Tensor out = s.output(tokens, shape.query_cols()),
                 log_sum_exp = s.wide_output(shape.query_heads, tokens);
    run_forward(s, batch, qkv, out, log_sum_exp);
    const Tensor scratch =
        s.workspace(s.device().attention_backward_workspace(shape, tokens, longest, s.dtype()));
    s.device().attention_backward(batch, longest, shape, s.upload(dy), qkv, out, log_sum_exp, dqkv, scratch);
    return Inputs{s.download(dqkv)};
  };
  return op;
}

Operation attention_cached(std::int64_t past, std::int64_t tokens, device::AttentionShape shape) {
  const std::int64_t context = past + tokens + 3, columns = 2 * shape.key_value_cols();
  Operation op;
  op.name = fmt::format("attention_cached, {} after {}, {} heads over {} of {}", tokens, past,
                        shape.query_heads, shape.key_value_heads, shape.head_dim);
  op.inputs = {normal(tokens, shape.qkv_cols(), "qkv"), normal(past, columns, "cache")};
  op.terms = std::max(past + tokens, shape.head_dim);
  op.roundings = 2;
  op.forward = [=](Session& s, const Inputs& in) {
    Layout layout = one_segment(static_cast<std::int32_t>(tokens));
    device::Batch batch = s.batch(layout);
    batch.past = past;
    Values filled{context, columns, std::vector<double>(static_cast<std::size_t>(context * columns), 0.5)};
    std::copy(in[1].data.begin(), in[1].data.end(), filled.data.begin());
    const Tensor cache = s.upload(filled), out = s.output(tokens, shape.query_cols());
    const Tensor scratch = s.workspace(s.device().attention_workspace(shape, tokens, context, s.dtype()));
    s.device().attention_cached(batch, shape, s.upload(in[0]), cache, out, scratch);
    return Inputs{s.download(out), s.download(cache)};
  };
  return op;
}

Operation projection_residual(std::int64_t tokens, std::int64_t in_cols, std::int64_t out) {
  Operation op;
  op.name = "projection_residual";
  op.inputs = {normal(tokens, in_cols, "x"), weight(out, in_cols, "weight")};
  op.terms = std::max({tokens, in_cols, out});
  op.roundings = 1;
  op.accumulates = {false, true};
  const Values residual = normal(tokens, out, "residual");
  op.forward = [=](Session& s, const Inputs& in) {
    const Tensor y = s.output(tokens, out), in_place = s.upload(residual);
    s.device().projection_residual(s.upload(in[0]), s.upload(in[1]), s.upload(residual), y);
    s.device().projection_residual(s.upload(in[0]), s.upload(in[1]), in_place, in_place);
    return Inputs{s.download(y), s.download(in_place)};
  };
  op.backward = [=](Session& s, const Inputs& in, const Values& dy, device::Accumulate accumulate) {
    const Tensor dx = s.output(tokens, in_cols), dw = s.weight_gradient(out, in_cols, accumulate);
    s.device().projection_backward(s.upload(dy), s.upload(in[0]), s.upload(in[1]), dx, dw, accumulate);
    return Inputs{s.download(dx), s.download(dw)};
  };
  return op;
}

Operation gate_up_swiglu(std::int64_t tokens, std::int64_t hidden, std::int64_t width) {
  Operation op;
  op.name = "gate_up_swiglu";
  op.inputs = {normal(tokens, hidden, "x"), weight(2 * width, hidden, "weight")};
  op.terms = std::max({tokens, hidden, 2 * width});
  op.roundings = 3;
  op.accumulates = {false, true};
  op.forward = [=](Session& s, const Inputs& in) {
    const Tensor gate_up = s.output(tokens, 2 * width), activated = s.output(tokens, width);
    s.device().gate_up_swiglu(s.upload(in[0]), s.upload(in[1]), gate_up, activated);
    return Inputs{s.download(activated), s.download(gate_up)};
  };
  op.backward = [=](Session& s, const Inputs& in, const Values& dy, device::Accumulate accumulate) {
    const Tensor x = s.upload(in[0]), w = s.upload(in[1]), gate_up = s.output(tokens, 2 * width);
    s.device().gate_up_swiglu(x, w, gate_up, s.output(tokens, width));
    const Tensor dx = s.output(tokens, hidden), dw = s.weight_gradient(2 * width, hidden, accumulate);
    s.device().gate_up_swiglu_backward(s.upload(dy), gate_up, x, w, dx, dw, accumulate);
    return Inputs{s.download(dx), s.download(dw), s.download(gate_up)};
  };
  return op;
}

Operation head_loss(const Layout& layout, std::int64_t hidden) {
  const std::int64_t tokens = layout.tokens(), vocabulary = layout.vocabulary;
  Operation op;
  op.name = "head_loss";
  op.inputs = {normal(tokens, hidden, "x"), weight(vocabulary, hidden, "weight")};
  op.terms = std::max({tokens, hidden, vocabulary});
  op.roundings = 2;
  op.accumulates = {false, true};
  op.forward = [=](Session& s, const Inputs& in) {
    const Scalars scalars(s);
    const Tensor scratch = s.workspace(s.device().head_loss_workspace(tokens, hidden, vocabulary, s.dtype()));
    s.device().head_loss(s.batch(layout), s.upload(in[0]), s.upload(in[1]), scalars.get(), scratch);
    return Inputs{scalar(scalars.read().loss_sum)};
  };
  op.backward = [=](Session& s, const Inputs& in, const Values& dy, device::Accumulate accumulate) {
    const Scalars scalars(s, {.inverse_tokens = dy.data[0]});
    const Tensor dx = s.output(tokens, hidden), dw = s.weight_gradient(vocabulary, hidden, accumulate);
    const Tensor scratch = s.workspace(s.device().head_loss_workspace(tokens, hidden, vocabulary, s.dtype()));
    s.device().head_loss_backward(s.batch(layout), s.upload(in[0]), s.upload(in[1]), scalars.get(), dx, dw,
                                  accumulate, scratch);
    return Inputs{s.download(dx), s.download(dw), scalar(scalars.read().loss_sum)};
  };
  return op;
}

Operation tied_head(const Layout& layout, std::int64_t hidden) {
  const std::int64_t tokens = layout.tokens(), vocabulary = layout.vocabulary;
  Operation op;
  op.name = "tied_head";
  op.inputs = {normal(vocabulary, hidden, "table", 0.3)};
  op.terms = std::max({tokens, hidden, vocabulary});
  op.roundings = 2;
  op.accumulates = {true};
  op.forward = [=](Session& s, const Inputs& in) {
    const Scalars scalars(s);
    const device::Batch batch = s.batch(layout);
    const Tensor table = s.upload(in[0]), x = s.output(tokens, hidden);
    s.device().embedding(batch, table, x);
    const Tensor scratch = s.workspace(s.device().head_loss_workspace(tokens, hidden, vocabulary, s.dtype()));
    s.device().head_loss(batch, x, table, scalars.get(), scratch);
    return Inputs{scalar(scalars.read().loss_sum)};
  };
  op.backward = [=](Session& s, const Inputs& in, const Values& dy, device::Accumulate accumulate) {
    const Scalars scalars(s, {.inverse_tokens = dy.data[0]});
    const device::Batch batch = s.batch(layout);
    const Tensor table = s.upload(in[0]), x = s.output(tokens, hidden), dx = s.output(tokens, hidden);
    s.device().embedding(batch, table, x);
    const Tensor dtable = s.weight_gradient(vocabulary, hidden, accumulate);
    const Tensor scratch = s.workspace(s.device().head_loss_workspace(tokens, hidden, vocabulary, s.dtype()));
    s.device().head_loss_backward(batch, x, table, scalars.get(), dx, dtable, accumulate, scratch);
    s.device().embedding_backward(batch, dx, dtable, device::Accumulate::yes);
    return Inputs{s.download(dtable)};
  };
  return op;
}

Operation linear(std::int64_t tokens, std::int64_t in_cols, std::int64_t out) {
  Operation op;
  op.name = "linear";
  op.inputs = {normal(tokens, in_cols, "x"), weight(out, in_cols, "weight")};
  op.terms = in_cols;
  op.roundings = 1;
  op.forward = [=](Session& s, const Inputs& in) {
    const Tensor y = s.output(tokens, out);
    s.device().linear(s.upload(in[0]), s.upload(in[1]), y);
    return Inputs{s.download(y)};
  };
  return op;
}

}  // namespace llampi::test
