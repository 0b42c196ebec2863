// SPDX-License-Identifier: Apache-2.0
// Operations that several layers of a Llama issue alike. The first parameter of such a layer is the weight of its norm.
#pragma once

#include <span>

#include "llampi/model/layer_support.hpp"

namespace llampi::model {

/// If backward() reads it: `spec`, as a saved tensor that can be recomputed. Otherwise forward() has it in scratch memory, and the
/// saved tensor is empty.
inline BufferSpec kept_or_scratch(const BufferSpec& spec, bool is_read, std::vector<BufferSpec>& scratch) {
  if (is_read) return recomputed(spec);
  scratch.push_back(spec);
  return {spec.name, 0, spec.cols, spec.dtype};
}

/// Where forward() writes it: the saved tensor, or the first of `scratch`, which then begins after it. In the order of the spec.
inline Tensor kept_or_scratch(const Tensor& saved, std::span<const Tensor>& scratch) {
  if (saved.elements() > 0) return saved;
  const Tensor first = scratch.front();
  scratch = scratch.subspan(1);
  return first;
}

/// A saved tensor if backward() is to write it once more, else nothing.
inline Tensor to_recompute(const LayerContext& c, const Tensor& saved) {
  return c.recomputes && saved.elements() > 0 ? saved : Tensor{};
}

/// Unless the weight is frozen and has no adapters.
inline void run_weight_gradient(const LayerContext& c, const device::op::WeightGradient& operation) {
  if (operation.dweight || !operation.adapters.empty()) c.operations.run(operation);
}

/// y = norm(input). @param maximum of y, to be measured; empty: it is not
inline void run_norm(const LayerContext& c, double eps, const Tensor& y, const Tensor& inverse_rms,
                     const Tensor& maximum = {}) {
  c.operations.run(device::op::RmsNorm{.x = c.input,
                                       .weight = c.parameters[0],
                                       .eps = eps,
                                       .y = y,
                                       .inverse_rms = inverse_rms,
                                       .maximum = maximum});
}

/// From the gradient of norm(input) to those of the input and of the norm's weight.
/// @param accumulate_dx yes: c.gradient already holds the gradient of the residual branch
/// @param maximum of c.gradient, to be measured; empty: it is not
/// @param y norm(input), to be written once more; empty: it is not
inline void run_norm_backward(const LayerContext& c, const Tensor& dnormed, const Tensor& inverse_rms,
                              Accumulate accumulate_dx, const Tensor& workspace, const Tensor& maximum = {},
                              const Tensor& y = {}) {
  c.operations.run(device::op::RmsNormBackward{.dy = dnormed,
                                               .x = c.input,
                                               .weight = c.parameters[0],
                                               .inverse_rms = inverse_rms,
                                               .dx = c.gradient,
                                               .accumulate_dx = accumulate_dx,
                                               .dweight = c.parameter_gradients[0],
                                               .accumulate_dweight = c.accumulate[0],
                                               .workspace = workspace,
                                               .maximum = maximum,
                                               .y = y});
}

/// Vectors that lie one after another, as one; empty if they are.
inline Tensor side_by_side(std::span<const Tensor> parts) {
  Tensor whole = parts.front();
  for (const Tensor& part : parts.subspan(1)) {
    require(static_cast<bool>(part) == static_cast<bool>(whole) && part.dtype == whole.dtype,
            "vectors that belong together differ");
    require(!part || part.data == static_cast<std::byte*>(whole.data) + whole.bytes(),
            "vectors that belong together have a gap between them");
    whole = whole.slice(0, whole.elements() + part.elements());
  }
  return whole;
}

/// Of an attention layer: what stands between its product and RoPE. Its parameters follow the five that all have.
/// @param count of the parameters after the five that all families have; adapters follow them
inline device::op::QkvTransform qkv_transform(const LayerContext& c, std::size_t count, double eps,
                                              const Tensor& product, const Tensor& inverse_rms) {
  const auto more = c.parameters.subspan(5, count);
  if (more.size() == 3) return {.bias = side_by_side(more)};
  if (more.size() == 2)
    return {.q_norm = more[0], .k_norm = more[1], .eps = eps, .product = product, .inverse_rms = inverse_rms};
  return {};
}

inline device::op::QkvTransformGradients qkv_transform_gradients(const LayerContext& c, std::size_t count,
                                                                 const Tensor& workspace) {
  const auto gradients = c.parameter_gradients.subspan(5, count);
  const auto accumulate = c.accumulate.subspan(5, count);
  if (gradients.size() == 3) {
    return {.bias = side_by_side(gradients),
            .accumulate_bias = alike({accumulate[0], accumulate[1], accumulate[2]}),
            .workspace = workspace};
  }
  if (gradients.size() == 2) {
    return {.q_norm = gradients[0],
            .k_norm = gradients[1],
            .accumulate_q_norm = accumulate[0],
            .accumulate_k_norm = accumulate[1],
            .workspace = workspace};
  }
  return {};
}

/// Of the backward pass, be it of whole sequences or, if there may be any, of shorter documents.
inline std::int64_t attention_backward_bytes(const device::OperationSizes& sizes,
                                             const device::AttentionShape& shape, const BatchShape& batch,
                                             DType compute) {
  const std::int64_t longest = batch.positions();
  const auto bytes_of = [&](std::int64_t max_seqlen) {
    return sizes.attention_backward_workspace(shape, batch.tokens(), max_seqlen, compute,
                                              batch.attention_room);
  };
  std::int64_t bytes = bytes_of(longest);
  using Classes = device::LengthClasses;
  for (int c = 0; batch.documents && batch.attention_room > 0 && Classes::longest(c) < longest; ++c)
    bytes = std::max(bytes, bytes_of(Classes::longest(c)));
  return bytes;
}

/// What attention keeps for its backward pass.
struct AttentionTensors {
  Tensor qkv, heads, log_sum_exp;
};

inline void run_attention(const LayerContext& c, const device::AttentionShape& shape,
                          const AttentionTensors& t, const Tensor& workspace) {
  c.operations.run(device::op::Attention{.documents = documents_of(c.batch, c.seq_len),
                                         .shape = shape,
                                         .qkv = t.qkv,
                                         .out = t.heads,
                                         .log_sum_exp = t.log_sum_exp,
                                         .workspace = workspace});
}

inline void run_attention_backward(const LayerContext& c, const device::AttentionShape& shape,
                                   const AttentionTensors& t, const Tensor& dheads, const Tensor& dqkv,
                                   const Tensor& workspace) {
  c.operations.run(device::op::AttentionBackward{.documents = documents_of(c.batch, c.seq_len),
                                                 .shape = shape,
                                                 .dout = dheads,
                                                 .qkv = t.qkv,
                                                 .out = t.heads,
                                                 .log_sum_exp = t.log_sum_exp,
                                                 .dqkv = dqkv,
                                                 .workspace = workspace,
                                                 .attention_room = c.attention_room});
}

}  // namespace llampi::model
