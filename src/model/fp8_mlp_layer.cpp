// SPDX-License-Identifier: Apache-2.0
// MlpLayer with its two products in 8 bits. What the backward pass needs of their inputs is the transposes in 8 bits,
// for the gradients of the weights.
#include <algorithm>
#include <utility>

#include "model/fp8_products.hpp"
#include "model/llama_layers.hpp"

namespace llampi::model {
namespace {

class Fp8MlpLayer final : public Layer {
 public:
  Fp8MlpLayer(std::string module, std::vector<int> parameters, const LlamaSizes& sizes,
              Fp8Neighbours neighbours)
      : module_(std::move(module)),
        parameters_(std::move(parameters)),
        sizes_(sizes),
        neighbours_(neighbours) {}

  LayerSpec spec(BatchShape batch, DType compute, const device::OperationSizes& sizes) const override {
    constexpr DType e4m3 = DType::float8_e4m3fn;
    const Fp8Recipe& recipe = *sizes_.fp8;
    const DType gradient = recipe.gradient, statistics = statistics_dtype(compute);
    const auto scale_spec = [&](std::string name, std::int64_t rows, std::int64_t cols) {
      return Fp8Products::scale_spec(recipe, std::move(name), rows, cols);
    };
    const std::int64_t tokens = batch.tokens(), hidden = sizes_.hidden, width = sizes_.feed_forward;
    const auto product_bytes = std::max(Fp8Products::workspace(sizes, tokens, hidden, 2 * width),
                                        Fp8Products::workspace(sizes, tokens, width, hidden));
    const auto backward_bytes =
        std::max(product_bytes, sizes.rms_norm_backward_workspace(tokens, hidden, compute));
    LayerSpec spec;
    spec.module = module_;
    spec.parameters = read_in_both(parameters_);
    spec.fp8_weights = {{parameters_[1], parameters_[2]}, {parameters_[3]}};
    spec.fp8_blocks = Fp8Products::in_blocks(recipe);
    spec.output = {"fed_forward", tokens, hidden, compute};
    const BufferSpec input{"input", tokens, hidden, compute}, gate_up{"gate_up", tokens, 2 * width, compute},
        activated{"activated", tokens, width, compute};
    // The input is read to be measured and to be cast; what is activated is written, and read, in between.
    spec.saved = {recomputed({"normed^T", hidden, tokens, e4m3}, 2 * input.bytes()),
                  recomputed(scale_spec("normed^T scale", hidden, tokens)),
                  recomputed({"inverse_rms", 1, tokens, statistics}),
                  gate_up,
                  recomputed({"activated^T", width, tokens, e4m3}, gate_up.bytes() + 2 * activated.bytes()),
                  recomputed(scale_spec("activated^T scale", width, tokens))};
    const std::int64_t wider = std::max(hidden, width), widest = std::max(hidden, 2 * width);
    const std::int64_t inputs = std::max(Fp8Products::norm_scratch(recipe, hidden), width);
    spec.forward_scratch = {{"normed, activated", tokens, inputs, compute},
                            {"input in 8 bits", tokens, wider, e4m3},
                            scale_spec("input scale", tokens, wider),
                            Fp8Products::maximum_spec(recipe),
                            workspace_spec(product_bytes, statistics)};
    spec.backward_scratch = {
        {"gradient in 8 bits", tokens, widest, gradient}, {"gradient^T", widest, tokens, gradient},
        scale_spec("gradient scale", tokens, widest),     scale_spec("gradient^T scale", widest, tokens),
        {"dactivated, dnormed", tokens, wider, compute},  Fp8Products::maximum_spec(recipe),
        workspace_spec(backward_bytes, statistics)};
    return spec;
  }

  void forward(LayerContext& c) const override {
    const auto [norm, gate, up, down] = take<4>(c.parameters);
    const auto [gate_up_weight, down_weight] = take<2>(c.fp8_weights);
    const auto [normed_t, normed_scale, inverse_rms, gate_up, activated_t, activated_scale] =
        take<6>(c.saved);
    const auto [normed_or_activated, input8, input_scale, maximum, workspace] = take<5>(c.scratch);
    const std::int64_t tokens = gate_up.rows, hidden = sizes_.hidden, width = sizes_.feed_forward;
    const Tensor activated = shaped(normed_or_activated, tokens, width);
    const Fp8Products fp8(c, *sizes_.fp8);

    const Fp8Tensor x = fp8.tensor(shaped(input8, tokens, hidden), normed_t, {input_scale, normed_scale});
    fp8.norm(sizes_.eps, normed_or_activated, inverse_rms, x, maximum);
    fp8.forward(x, stacked({gate, up}), gate_up_weight.scale, {}, gate_up, workspace);
    c.operations.run(
        device::op::Swiglu{.gate_up = gate_up, .activated = activated, .maximum = fp8.measured(maximum)});
    const Fp8Tensor a =
        fp8.tensor(shaped(input8, tokens, width), activated_t, {input_scale, activated_scale});
    fp8.cast_measured(activated, a, maximum);
    if (c.output) fp8.forward(a, down, down_weight.scale, c.input, c.output, workspace);
  }

  void backward(LayerContext& c) const override {
    const auto [dnorm, dgate, dup, ddown] = take<4>(c.parameter_gradients);
    const auto [add_norm, add_gate, add_up, add_down] = take<4>(c.accumulate);
    const auto [gate_up_weight, down_weight] = take<2>(c.fp8_weights);
    const auto [normed_t, normed_scale, inverse_rms, gate_up, activated_t, activated_scale] =
        take<6>(c.saved);
    const auto [gradient8, gradient_t, gradient_scale, gradient_t_scale, dactivated_or_dnormed, maximum,
                workspace] = take<7>(c.scratch);
    const std::int64_t tokens = gate_up.rows, hidden = sizes_.hidden, width = sizes_.feed_forward;
    const Tensor dactivated = shaped(dactivated_or_dnormed, tokens, width);
    const Tensor dnormed = shaped(dactivated_or_dnormed, tokens, hidden);
    const Fp8Products fp8(c, *sizes_.fp8);
    const auto gradient_of = [&fp8, tokens, values = gradient8, transposed = gradient_t,
                              scales =
                                  Fp8ScaleMemory{gradient_scale, gradient_t_scale}](std::int64_t features) {
      return fp8.tensor(shaped(values, tokens, features), shaped(transposed, features, tokens), scales);
    };

    if (c.recomputes) recompute(c, dactivated_or_dnormed, maximum);
    const Fp8Tensor dy = gradient_of(hidden), dgate_up = gradient_of(2 * width);
    fp8.cast_gradient(neighbours_.after, dy, maximum);
    fp8.backward({.dy = dy,
                  .x = fp8.tensor({}, activated_t, {{}, activated_scale}),
                  .weight = down_weight,
                  .dx = dactivated,
                  .dweight = ddown,
                  .accumulate_dweight = add_down},
                 workspace);
    fp8.swiglu_backward(dactivated, gate_up, dgate_up, maximum);
    fp8.backward({.dy = dgate_up,
                  .x = fp8.tensor({}, normed_t, {{}, normed_scale}),
                  .weight = gate_up_weight,
                  .dx = dnormed,
                  .dweight = stacked({dgate, dup}),
                  .accumulate_dweight = alike({add_gate, add_up})},
                 workspace);
    // The gradient already holds that of the residual branch.
    run_norm_backward(c, dnormed, inverse_rms, Accumulate::yes, workspace,
                      fp8.measured_gradient(neighbours_.before));
  }

 private:
  /// What is saved of norm and activation once more. What is cast again has been counted.
  void recompute(LayerContext c, const Tensor& scratch, const Tensor& maximum) const {
    c.fp8_counts = nullptr;
    const auto [normed_t, normed_scale, inverse_rms, gate_up, activated_t, activated_scale] =
        take<6>(c.saved);
    const Tensor activated = shaped(scratch, gate_up.rows, sizes_.feed_forward);
    const Fp8Products fp8(c, *sizes_.fp8);

    fp8.norm(sizes_.eps, scratch, inverse_rms, fp8.tensor({}, normed_t, {{}, normed_scale}), maximum);
    c.operations.run(
        device::op::Swiglu{.gate_up = gate_up, .activated = activated, .maximum = fp8.measured(maximum)});
    fp8.cast_measured(activated, fp8.tensor({}, activated_t, {{}, activated_scale}), maximum);
  }

  std::string module_;
  std::vector<int> parameters_;
  LlamaSizes sizes_;
  Fp8Neighbours neighbours_;
};

}  // namespace

std::unique_ptr<Layer> make_fp8_mlp_layer(std::string module, std::vector<int> parameters,
                                          const LlamaSizes& sizes, Fp8Neighbours neighbours) {
  return std::make_unique<Fp8MlpLayer>(std::move(module), std::move(parameters), sizes, neighbours);
}

}  // namespace llampi::model
