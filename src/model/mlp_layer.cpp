// SPDX-License-Identifier: Apache-2.0
// out = x + (silu(norm(x) Wgate^T) * (norm(x) Wup^T)) Wdown^T
#include "model/llama_layers.hpp"
#include "model/llama_operations.hpp"

namespace llampi::model {
namespace {

class MlpLayer final : public Layer {
 public:
  MlpLayer(std::string module, std::vector<int> parameters, const LlamaSizes& sizes, Adapters adapters)
      : module_(std::move(module)),
        parameters_(std::move(parameters)),
        sizes_(sizes),
        adapters_(std::move(adapters)) {}

  LayerSpec spec(BatchShape batch, DType compute, const device::OperationSizes& sizes) const override {
    const std::int64_t tokens = batch.tokens();
    const DType statistics = statistics_dtype(compute);
    const auto backward_bytes = sizes.rms_norm_backward_workspace(tokens, sizes_.hidden, compute);
    LayerSpec spec;
    spec.module = module_;
    spec.parameters = read_in_both(parameters_);
    spec.output = {"fed_forward", tokens, sizes_.hidden, compute};
    auto& scratch = spec.forward_scratch;
    spec.saved = {kept_or_scratch({"normed", tokens, sizes_.hidden, compute},
                                  adapters_.learns_from(kGateUpProduct), scratch),
                  {"inverse_rms", 1, tokens, statistics},
                  {"gate_up", tokens, 2 * sizes_.feed_forward, compute},
                  kept_or_scratch({"activated", tokens, sizes_.feed_forward, compute},
                                  adapters_.learns_from(kDownProduct), scratch)};
    spec.backward_scratch = {{"dactivated", tokens, sizes_.feed_forward, compute},
                             {"dnormed", tokens, sizes_.hidden, compute},
                             workspace_spec(backward_bytes, statistics)};
    adapters_.extend(spec, batch, compute);
    return spec;
  }

  void forward(LayerContext& c) const override {
    const auto [norm, gate, up, down] = take<4>(c.parameters.first(4));
    const auto [kept_normed, inverse_rms, gate_up, kept_activated] = take<4>(c.saved.first(4));
    auto scratch = c.scratch;
    const Tensor normed = kept_or_scratch(kept_normed, scratch);
    const Tensor activated = kept_or_scratch(kept_activated, scratch);
    const auto of_gate_up = adapters_.forward(c, kGateUpProduct),
               of_down = adapters_.forward(c, kDownProduct);

    run_norm(c, sizes_.eps, normed, inverse_rms);
    c.operations.run(device::op::GateUpSwiglu{.x = normed,
                                              .weight = stacked({gate, up}),
                                              .gate_up = gate_up,
                                              .activated = activated,
                                              .adapters = of_gate_up});
    if (!c.output) return adapters_.run_down(c, kDownProduct, activated);
    c.operations.run(device::op::ProjectionResidual{
        .x = activated, .weight = down, .residual = c.input, .y = c.output, .adapters = of_down});
  }

  // What the weights' gradients read, backward() can write once more beside the gradients of its inputs, from what is read for these in
  // any case. So those of the weights come last.
  void backward(LayerContext& c) const override {
    const auto [norm, gate, up, down] = take<4>(c.parameters.first(4));
    const auto [dnorm, dgate, dup, ddown] = take<4>(c.parameter_gradients.first(4));
    const auto [add_norm, add_gate, add_up, add_down] = take<4>(c.accumulate.first(4));
    const auto [normed, inverse_rms, gate_up, activated] = take<4>(c.saved.first(4));
    const auto [dactivated, dnormed, workspace] = take<3>(c.scratch.first(3));
    const auto of_gate_up = adapters_.backward(c, kGateUpProduct),
               of_down = adapters_.backward(c, kDownProduct);

    c.operations.run(
        device::op::InputGradient{.dy = c.gradient, .weight = down, .dx = dactivated, .adapters = of_down});
    // gate_up becomes its own gradient.
    c.operations.run(device::op::SwigluBackward{
        .dactivated = dactivated, .gate_up = gate_up, .activated = to_recompute(c, activated)});
    run_weight_gradient(c, {.dy = c.gradient,
                            .x = activated,
                            .dweight = ddown,
                            .accumulate_dweight = add_down,
                            .adapters = of_down});
    c.operations.run(device::op::InputGradient{
        .dy = gate_up, .weight = stacked({gate, up}), .dx = dnormed, .adapters = of_gate_up});
    // The gradient already holds that of the residual branch.
    run_norm_backward(c, dnormed, inverse_rms, Accumulate::yes, workspace, {}, to_recompute(c, normed));
    run_weight_gradient(c, {.dy = gate_up,
                            .x = normed,
                            .dweight = stacked({dgate, dup}),
                            .accumulate_dweight = alike({add_gate, add_up}),
                            .adapters = of_gate_up});
  }

 private:
  std::string module_;
  std::vector<int> parameters_;
  LlamaSizes sizes_;
  Adapters adapters_;
};

}  // namespace

std::unique_ptr<Layer> make_mlp_layer(std::string module, std::vector<int> parameters,
                                      const LlamaSizes& sizes, Adapters adapters) {
  return std::make_unique<MlpLayer>(std::move(module), std::move(parameters), sizes, std::move(adapters));
}

}  // namespace llampi::model
