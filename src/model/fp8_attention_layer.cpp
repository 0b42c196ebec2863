// SPDX-License-Identifier: Apache-2.0
// AttentionLayer with its two products in 8 bits. What the backward pass needs of norm(x) is its transpose in 8 bits,
// for the gradient of the weights alone; of the heads attention needs them as they are, so they are cast once more, with
// the maximum that the forward pass measured.
#include <algorithm>
#include <utility>

#include "model/fp8_products.hpp"
#include "model/llama_layers.hpp"

namespace llampi::model {
namespace {

class Fp8AttentionLayer final : public Layer {
 public:
  Fp8AttentionLayer(std::string module, std::vector<int> parameters, const LlamaSizes& sizes,
                    Fp8Neighbours neighbours)
      : module_(std::move(module)),
        parameters_(std::move(parameters)),
        sizes_(sizes),
        neighbours_(neighbours),
        shape_(sizes.attention) {}

  LayerSpec spec(BatchShape batch, DType compute, const device::OperationSizes& sizes) const override {
    constexpr DType e4m3 = DType::float8_e4m3fn;
    const Fp8Recipe& recipe = *sizes_.fp8;
    const DType gradient = recipe.gradient, statistics = statistics_dtype(compute);
    const auto scale_spec = [&](std::string name, std::int64_t rows, std::int64_t cols) {
      return Fp8Products::scale_spec(recipe, std::move(name), rows, cols);
    };
    const std::int64_t tokens = batch.tokens(), longest = batch.positions(), hidden = sizes_.hidden;
    const std::int64_t qkv = shape_.qkv_cols(), heads = shape_.query_cols();
    const auto product_bytes = std::max(Fp8Products::workspace(sizes, tokens, hidden, qkv),
                                        Fp8Products::workspace(sizes, tokens, heads, hidden));
    const auto forward_bytes = sizes.attention_workspace(shape_, tokens, longest, compute);
    const auto backward_bytes = std::max(attention_backward_bytes(sizes, shape_, batch, compute),
                                         sizes.rms_norm_backward_workspace(tokens, hidden, compute));
    LayerSpec spec;
    spec.module = module_;
    spec.parameters = read_in_both(parameters_);
    spec.attention = shape_;
    spec.fp8_weights = {{parameters_[1], parameters_[2], parameters_[3]}, {parameters_[4]}};
    spec.fp8_blocks = Fp8Products::in_blocks(recipe);
    spec.output = {"attended", tokens, hidden, compute};
    const BufferSpec input{"input", tokens, hidden, compute};
    spec.saved = {recomputed({"normed^T", hidden, tokens, e4m3}, 2 * input.bytes()),
                  recomputed(scale_spec("normed^T scale", hidden, tokens)),
                  recomputed({"inverse_rms", 1, tokens, statistics}),
                  {"qkv", tokens, qkv, compute},
                  {"heads", tokens, heads, compute},
                  Fp8Products::kept_maximum_spec(recipe, "largest of heads"),
                  {"log_sum_exp", shape_.query_heads, tokens, statistics}};
    const std::int64_t wider = std::max(hidden, heads), widest = std::max(hidden, qkv);
    const std::int64_t normed = Fp8Products::norm_scratch(recipe, hidden);
    spec.forward_scratch = {{"normed", tokens, normed, compute},
                            {"input in 8 bits", tokens, wider, e4m3},
                            scale_spec("input scale", tokens, wider),
                            Fp8Products::maximum_spec(recipe),
                            workspace_spec(std::max(forward_bytes, product_bytes), statistics)};
    spec.backward_scratch = {{"heads^T", heads, tokens, e4m3},
                             scale_spec("heads^T scale", heads, tokens),
                             {"gradient in 8 bits", tokens, widest, gradient},
                             {"gradient^T", widest, tokens, gradient},
                             scale_spec("gradient scale", tokens, widest),
                             scale_spec("gradient^T scale", widest, tokens),
                             {"dheads, dnormed", tokens, wider, compute},
                             {"dqkv", tokens, qkv, compute},
                             Fp8Products::maximum_spec(recipe),
                             workspace_spec(std::max(backward_bytes, product_bytes), statistics)};
    require(batch.context == 0, "generation in 8 bits");
    return spec;
  }

  void forward(LayerContext& c) const override {
    const auto [norm, q, k, v, o] = take<5>(c.parameters);
    const auto [qkv_weight, o_weight] = take<2>(c.fp8_weights);
    const auto [normed_t, normed_scale, inverse_rms, qkv, heads, largest_of_heads, log_sum_exp] =
        take<7>(c.saved);
    const auto [normed, input8, input_scale, maximum, workspace] = take<5>(c.scratch);
    const auto [rope] = take<1>(c.constants);
    const Fp8Products fp8(c, *sizes_.fp8);

    const Fp8Tensor x =
        fp8.tensor(shaped(input8, qkv.rows, sizes_.hidden), normed_t, {input_scale, normed_scale});
    fp8.norm(sizes_.eps, normed, inverse_rms, x, maximum);
    fp8.forward(x, stacked({q, k, v}), qkv_weight.scale, {}, qkv, workspace);
    c.operations.run(device::op::Rope{
        .positions = c.batch.positions, .rope = rope, .shape = shape_, .backward = false, .qkv = qkv});
    run_attention(c, shape_, {qkv, heads, log_sum_exp}, workspace);
    const Tensor heads_maximum = fp8.kept_maximum(largest_of_heads, maximum);
    fp8.measure(heads, heads_maximum);
    if (!c.output) return;
    const Fp8Tensor h = fp8.tensor(shaped(input8, heads.rows, heads.cols), {}, {input_scale, {}});
    fp8.cast_measured(heads, h, heads_maximum);
    fp8.forward(h, o, o_weight.scale, c.input, c.output, workspace);
  }

  void backward(LayerContext& c) const override {
    const auto [dnorm, dq, dk, dv, do_] = take<5>(c.parameter_gradients);
    const auto [add_norm, add_q, add_k, add_v, add_o] = take<5>(c.accumulate);
    const auto [qkv_weight, o_weight] = take<2>(c.fp8_weights);
    const auto [normed_t, normed_scale, inverse_rms, qkv, heads, largest_of_heads, log_sum_exp] =
        take<7>(c.saved);
    const auto [heads_t, heads_scale, gradient8, gradient_t, gradient_scale, gradient_t_scale,
                dheads_or_dnormed, dqkv, maximum, workspace] = take<10>(c.scratch);
    const auto [rope] = take<1>(c.constants);
    const std::int64_t tokens = qkv.rows, hidden = sizes_.hidden;
    const Tensor dheads = shaped(dheads_or_dnormed, tokens, heads.cols);
    const Tensor dnormed = shaped(dheads_or_dnormed, tokens, hidden);
    const Fp8Products fp8(c, *sizes_.fp8);
    const auto gradient_of = [&fp8, tokens, values = gradient8, transposed = gradient_t,
                              scales =
                                  Fp8ScaleMemory{gradient_scale, gradient_t_scale}](std::int64_t features) {
      return fp8.tensor(shaped(values, tokens, features), shaped(transposed, features, tokens), scales);
    };

    if (c.recomputes) recompute(c, dheads_or_dnormed, maximum);
    const Fp8Tensor dy = gradient_of(hidden), dqkv8 = gradient_of(dqkv.cols);
    const Fp8Tensor h = fp8.tensor({}, heads_t, {{}, heads_scale});
    fp8.cast_gradient(neighbours_.after, dy, maximum);
    if (do_) fp8.cast_measured(heads, h, fp8.kept_maximum(largest_of_heads, maximum));
    fp8.backward(
        {.dy = dy, .x = h, .weight = o_weight, .dx = dheads, .dweight = do_, .accumulate_dweight = add_o},
        workspace);
    run_attention_backward(c, shape_, {qkv, heads, log_sum_exp}, dheads, dqkv, workspace);
    fp8.rope_backward(rope, shape_, dqkv, dqkv8, maximum);
    fp8.backward({.dy = dqkv8,
                  .x = fp8.tensor({}, normed_t, {{}, normed_scale}),
                  .weight = qkv_weight,
                  .dx = dnormed,
                  .dweight = stacked({dq, dk, dv}),
                  .accumulate_dweight = alike({add_q, add_k, add_v})},
                 workspace);
    // The gradient already holds that of the residual branch.
    run_norm_backward(c, dnormed, inverse_rms, Accumulate::yes, workspace,
                      fp8.measured_gradient(neighbours_.before));
  }

 private:
  /// What is saved of the norm once more. What is cast again has been counted.
  void recompute(LayerContext c, const Tensor& scratch, const Tensor& maximum) const {
    c.fp8_counts = nullptr;
    const Tensor &normed_t = c.saved[0], &normed_scale = c.saved[1], &inverse_rms = c.saved[2];
    const Fp8Products fp8(c, *sizes_.fp8);
    fp8.norm(sizes_.eps, scratch, inverse_rms, fp8.tensor({}, normed_t, {{}, normed_scale}), maximum);
  }

  std::string module_;
  std::vector<int> parameters_;
  LlamaSizes sizes_;
  Fp8Neighbours neighbours_;
  device::AttentionShape shape_;
};

}  // namespace

std::unique_ptr<Layer> make_fp8_attention_layer(std::string module, std::vector<int> parameters,
                                                const LlamaSizes& sizes, Fp8Neighbours neighbours) {
  return std::make_unique<Fp8AttentionLayer>(std::move(module), std::move(parameters), sizes, neighbours);
}

}  // namespace llampi::model
