// SPDX-License-Identifier: Apache-2.0
// out = x + attention(rope(norm(x) [Wq; Wk; Wv]^T)) Wo^T, in some models with a bias, or norms of heads, before RoPE
#include <algorithm>

#include "model/llama_layers.hpp"
#include "model/llama_operations.hpp"

namespace llampi::model {
namespace {

class AttentionLayer final : public Layer {
 public:
  AttentionLayer(std::string module, std::vector<int> parameters, const LlamaSizes& sizes, Adapters adapters)
      : module_(std::move(module)),
        parameters_(std::move(parameters)),
        sizes_(sizes),
        shape_(sizes.attention),
        adapters_(std::move(adapters)) {}

  LayerSpec spec(BatchShape batch, DType compute, const device::OperationSizes& sizes) const override {
    const std::int64_t tokens = batch.tokens(), longest = batch.positions();
    const DType statistics = statistics_dtype(compute);
    const auto forward_bytes = sizes.attention_workspace(shape_, tokens, longest, compute);
    const bool transforms = sizes_.qkv_bias || sizes_.qk_norms;
    const auto backward_bytes = std::max(
        {attention_backward_bytes(sizes, shape_, batch, compute),
         sizes.rms_norm_backward_workspace(tokens, sizes_.hidden, compute),
         transforms ? sizes.qkv_transform_backward_workspace(shape_, tokens, compute) : std::int64_t{0}});
    LayerSpec spec;
    spec.module = module_;
    spec.parameters = read_in_both(parameters_);
    spec.attention = shape_;
    spec.output = {"attended", tokens, sizes_.hidden, compute};
    spec.forward_scratch = {workspace_spec(forward_bytes, statistics)};
    spec.saved = {kept_or_scratch({"normed", tokens, sizes_.hidden, compute},
                                  adapters_.learns_from(kQkvProduct), spec.forward_scratch),
                  {"inverse_rms", 1, tokens, statistics},
                  {"qkv", tokens, shape_.qkv_cols(), compute},
                  {"heads", tokens, shape_.query_cols(), compute},
                  {"log_sum_exp", shape_.query_heads, tokens, statistics}};
    if (sizes_.qk_norms) {
      const BufferSpec product{"qkv product", tokens, shape_.qkv_cols(), compute};
      spec.saved[2] = recomputed(spec.saved[2], product.bytes());
      spec.saved.push_back(product);
      spec.saved.push_back(recomputed(
          {"heads' inverse_rms", tokens, shape_.query_heads + shape_.key_value_heads, statistics}));
    }
    if (batch.context > 0) {
      require(batch.sequences == 1, "generation of one sequence at a time");
      spec.kv_cache = {{"keys and values", batch.context, 2 * shape_.key_value_cols(), compute}};
    }
    spec.backward_scratch = {{"dheads", tokens, shape_.query_cols(), compute},
                             {"dqkv", tokens, shape_.qkv_cols(), compute},
                             {"dnormed", tokens, sizes_.hidden, compute},
                             workspace_spec(backward_bytes, statistics)};
    adapters_.extend(spec, batch, compute);
    return spec;
  }

  void forward(LayerContext& c) const override {
    const auto [norm, q, k, v, o] = take<5>(c.parameters.first(5));
    const auto [kept_normed, inverse_rms, qkv, heads, log_sum_exp] = take<5>(c.saved.first(5));
    const auto [workspace] = take<1>(c.scratch.first(1));
    auto more_scratch = c.scratch.subspan(1);
    const Tensor normed = kept_or_scratch(kept_normed, more_scratch);
    const auto [rope] = take<1>(c.constants);
    const auto of_qkv = adapters_.forward(c, kQkvProduct), of_out = adapters_.forward(c, kOutProduct);

    run_norm(c, sizes_.eps, normed, inverse_rms);
    c.operations.run(device::op::QkvRope{.positions = c.batch.positions,
                                         .x = normed,
                                         .weight = stacked({q, k, v}),
                                         .rope = rope,
                                         .shape = shape_,
                                         .qkv = qkv,
                                         .transform = transform(c),
                                         .adapters = of_qkv});
    if (c.kv_cache.empty()) {
      run_attention(c, shape_, {qkv, heads, log_sum_exp}, workspace);
    } else {
      const std::int64_t rows = c.logits_row < 0 ? qkv.rows : c.logits_row + 1;  // the others are filled up
      c.operations.run(device::op::CachedAttention{.kv_len = c.batch.kv_len,
                                                   .shape = shape_,
                                                   .qkv = qkv.slice_rows(0, rows),
                                                   .kv_cache = c.kv_cache[0],
                                                   .out = heads.slice_rows(0, rows),
                                                   .workspace = workspace});
    }
    if (!c.output) return adapters_.run_down(c, kOutProduct, heads);
    c.operations.run(device::op::ProjectionResidual{
        .x = heads, .weight = o, .residual = c.input, .y = c.output, .adapters = of_out});
  }

  void backward(LayerContext& c) const override {
    const auto [norm, q, k, v, o] = take<5>(c.parameters.first(5));
    const auto [dnorm, dq, dk, dv, do_] = take<5>(c.parameter_gradients.first(5));
    const auto [add_norm, add_q, add_k, add_v, add_o] = take<5>(c.accumulate.first(5));
    const auto [normed, inverse_rms, qkv, heads, log_sum_exp] = take<5>(c.saved.first(5));
    const auto [dheads, dqkv, dnormed, workspace] = take<4>(c.scratch.first(4));
    const auto [rope] = take<1>(c.constants);
    const auto of_qkv = adapters_.backward(c, kQkvProduct), of_out = adapters_.backward(c, kOutProduct);

    if (c.recomputes && sizes_.qk_norms) {
      c.operations.run(device::op::Rope{.positions = c.batch.positions,
                                        .rope = rope,
                                        .shape = shape_,
                                        .backward = false,
                                        .qkv = qkv,
                                        .transform = transform(c)});
    }
    c.operations.run(
        device::op::InputGradient{.dy = c.gradient, .weight = o, .dx = dheads, .adapters = of_out});
    run_weight_gradient(
        c, {.dy = c.gradient, .x = heads, .dweight = do_, .accumulate_dweight = add_o, .adapters = of_out});
    run_attention_backward(c, shape_, {qkv, heads, log_sum_exp}, dheads, dqkv, workspace);
    // dqkv becomes the gradient of the product.
    c.operations.run(
        device::op::Rope{.positions = c.batch.positions,
                         .rope = rope,
                         .shape = shape_,
                         .backward = true,
                         .qkv = dqkv,
                         .transform = transform(c),
                         .dtransform = qkv_transform_gradients(c, parameters_.size() - 5, workspace)});
    c.operations.run(device::op::InputGradient{
        .dy = dqkv, .weight = stacked({q, k, v}), .dx = dnormed, .adapters = of_qkv});
    // The gradient already holds that of the residual branch.
    run_norm_backward(c, dnormed, inverse_rms, Accumulate::yes, workspace, {}, to_recompute(c, normed));
    run_weight_gradient(c, {.dy = dqkv,
                            .x = normed,
                            .dweight = stacked({dq, dk, dv}),
                            .accumulate_dweight = alike({add_q, add_k, add_v}),
                            .adapters = of_qkv});
  }

 private:
  device::op::QkvTransform transform(const LayerContext& c) const {
    if (!sizes_.qk_norms) return qkv_transform(c, parameters_.size() - 5, sizes_.eps, {}, {});
    return qkv_transform(c, parameters_.size() - 5, sizes_.eps, c.saved[5], c.saved[6]);
  }

  std::string module_;
  std::vector<int> parameters_;
  LlamaSizes sizes_;
  device::AttentionShape shape_;
  Adapters adapters_;
};

}  // namespace

std::unique_ptr<Layer> make_attention_layer(std::string module, std::vector<int> parameters,
                                            const LlamaSizes& sizes, Adapters adapters) {
  return std::make_unique<AttentionLayer>(std::move(module), std::move(parameters), sizes,
                                          std::move(adapters));
}

}  // namespace llampi::model
