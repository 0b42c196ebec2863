// SPDX-License-Identifier: Apache-2.0
// MlpStage with its two products in 8 bits. What the backward pass needs of their inputs is the transposes in 8 bits,
// for the gradients of the weights.
#include <algorithm>

#include "model/fp8_products.hpp"
#include "model/llama_stages.hpp"

namespace llampi::model {
namespace {

class Fp8MlpStage final : public Stage {
 public:
  Fp8MlpStage(std::string module, std::vector<int> parameters, const LlamaSizes& sizes)
      : module_(std::move(module)), parameters_(std::move(parameters)), sizes_(sizes) {}

  StageSpec spec(BatchShape batch, DType compute, const device::OperationSizes& sizes) const override {
    constexpr DType e4m3 = DType::float8_e4m3fn;
    const DType gradient = sizes_.fp8->gradient, statistics = statistics_dtype(compute);
    const std::int64_t tokens = batch.tokens(), hidden = sizes_.hidden, width = sizes_.feed_forward;
    const auto product_bytes = std::max(fp8_workspace(sizes, tokens, hidden, 2 * width),
                                        fp8_workspace(sizes, tokens, width, hidden));
    const auto backward_bytes =
        std::max(product_bytes, sizes.rms_norm_backward_workspace(tokens, hidden, compute));
    StageSpec spec;
    spec.module = module_;
    spec.parameters = read_in_both(parameters_);
    spec.fp8_weights = {{parameters_[1], parameters_[2]}, {parameters_[3]}};
    spec.output = {"fed_forward", tokens, hidden, compute};
    spec.saved = {cheap({"normed^T", hidden, tokens, e4m3}),     cheap(fp8_scale_spec("normed scale")),
                  cheap({"inverse_rms", 1, tokens, statistics}), {"gate_up", tokens, 2 * width, compute},
                  cheap({"activated^T", width, tokens, e4m3}),   cheap(fp8_scale_spec("activated scale"))};
    const std::int64_t wider = std::max(hidden, width);
    spec.forward_scratch = {{"normed, activated", tokens, wider, compute},
                            {"input in 8 bits", tokens, wider, e4m3},
                            fp8_maximum_spec(),
                            workspace_spec(product_bytes, statistics)};
    spec.recompute_scratch = {{"normed, activated", tokens, wider, compute}, fp8_maximum_spec()};
    spec.backward_scratch = {{"gradient in 8 bits", tokens, std::max(hidden, 2 * width), gradient},
                             {"gradient^T", std::max(hidden, 2 * width), tokens, gradient},
                             fp8_scale_spec("gradient scale"),
                             {"dactivated, dnormed", tokens, wider, compute},
                             fp8_maximum_spec(),
                             workspace_spec(backward_bytes, statistics)};
    return spec;
  }

  void forward(StageContext& c) const override {
    const auto [norm, gate, up, down] = take<4>(c.parameters);
    const auto [gate_up_weight, down_weight] = take<2>(c.fp8_weights);
    const auto [normed_t, normed_scale, inverse_rms, gate_up, activated_t, activated_scale] =
        take<6>(c.saved);
    const auto [normed_or_activated, input8, maximum, workspace] = take<4>(c.scratch);
    const std::int64_t tokens = gate_up.rows, hidden = sizes_.hidden, width = sizes_.feed_forward;
    const Tensor normed = shaped(normed_or_activated, tokens, hidden);
    const Tensor activated = shaped(normed_or_activated, tokens, width);

    const Fp8Tensor x{shaped(input8, tokens, hidden), normed_t, normed_scale};
    fp8_norm(c, sizes_.eps, {normed, inverse_rms}, x, maximum);
    fp8_forward(c, x, stacked({gate, up}), gate_up_weight.scale, {}, gate_up, workspace);
    c.operations.run(device::op::Swiglu{
        .gate_up = gate_up, .activated = activated, .maximum = fp8_begin_maximum(c, maximum)});
    const Fp8Tensor a{shaped(input8, tokens, width), activated_t, activated_scale};
    fp8_cast_measured(c, activated, a, maximum);
    if (c.output) fp8_forward(c, a, down, down_weight.scale, c.input, c.output, workspace);
  }

  void recompute(StageContext& c) const override {
    const auto [normed_t, normed_scale, inverse_rms, gate_up, activated_t, activated_scale] =
        take<6>(c.saved);
    const auto [normed_or_activated, maximum] = take<2>(c.scratch);
    const Tensor normed = shaped(normed_or_activated, gate_up.rows, sizes_.hidden);
    const Tensor activated = shaped(normed_or_activated, gate_up.rows, sizes_.feed_forward);

    fp8_norm(c, sizes_.eps, {normed, inverse_rms}, {{}, normed_t, normed_scale}, maximum);
    c.operations.run(device::op::Swiglu{
        .gate_up = gate_up, .activated = activated, .maximum = fp8_begin_maximum(c, maximum)});
    fp8_cast_measured(c, activated, {{}, activated_t, activated_scale}, maximum);
  }

  void backward(StageContext& c) const override {
    const auto [dnorm, dgate, dup, ddown] = take<4>(c.parameter_gradients);
    const auto [add_norm, add_gate, add_up, add_down] = take<4>(c.accumulate);
    const auto [gate_up_weight, down_weight] = take<2>(c.fp8_weights);
    const auto [normed_t, normed_scale, inverse_rms, gate_up, activated_t, activated_scale] =
        take<6>(c.saved);
    const auto [gradient8, gradient_t, gradient_scale, dactivated_or_dnormed, maximum, workspace] =
        take<6>(c.scratch);
    const std::int64_t tokens = gate_up.rows, hidden = sizes_.hidden, width = sizes_.feed_forward;
    const Tensor dactivated = shaped(dactivated_or_dnormed, tokens, width);
    const Tensor dnormed = shaped(dactivated_or_dnormed, tokens, hidden);

    const Fp8Tensor dy{shaped(gradient8, tokens, hidden), shaped(gradient_t, hidden, tokens), gradient_scale};
    const Fp8Tensor dgate_up{shaped(gradient8, tokens, 2 * width), shaped(gradient_t, 2 * width, tokens),
                             gradient_scale};
    fp8_cast(c, c.gradient, dy, maximum);
    fp8_backward(c,
                 {.dy = dy,
                  .x = {{}, activated_t, activated_scale},
                  .weight = down_weight,
                  .dx = dactivated,
                  .dweight = ddown,
                  .accumulate_dweight = add_down},
                 workspace);
    // gate_up becomes its own gradient.
    c.operations.run(device::op::SwigluBackward{
        .dactivated = dactivated, .gate_up = gate_up, .maximum = fp8_begin_maximum(c, maximum)});
    fp8_cast_measured(c, gate_up, dgate_up, maximum);
    fp8_backward(c,
                 {.dy = dgate_up,
                  .x = {{}, normed_t, normed_scale},
                  .weight = gate_up_weight,
                  .dx = dnormed,
                  .dweight = stacked({dgate, dup}),
                  .accumulate_dweight = alike({add_gate, add_up})},
                 workspace);
    // The gradient already holds that of the residual branch.
    run_norm_backward(c, dnormed, inverse_rms, Accumulate::yes, workspace);
  }

 private:
  std::string module_;
  std::vector<int> parameters_;
  LlamaSizes sizes_;
};

}  // namespace

std::unique_ptr<Stage> make_fp8_mlp_stage(std::string module, std::vector<int> parameters,
                                          const LlamaSizes& sizes) {
  return std::make_unique<Fp8MlpStage>(std::move(module), std::move(parameters), sizes);
}

}  // namespace llampi::model
