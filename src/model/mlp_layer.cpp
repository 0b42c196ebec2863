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
    spec.saved = {recomputed({"normed", tokens, sizes_.hidden, compute}),
                  recomputed({"inverse_rms", 1, tokens, statistics}),
                  {"gate_up", tokens, 2 * sizes_.feed_forward, compute},
                  recomputed({"activated", tokens, sizes_.feed_forward, compute})};
    spec.backward_scratch = {{"dactivated", tokens, sizes_.feed_forward, compute},
                             {"dnormed", tokens, sizes_.hidden, compute},
                             workspace_spec(backward_bytes, statistics)};
    adapters_.extend(spec, batch, compute);
    return spec;
  }

  void forward(LayerContext& c) const override {
    const auto [norm, gate, up, down] = take<4>(c.parameters.first(4));
    const auto [normed, inverse_rms, gate_up, activated] = take<4>(c.saved.first(4));
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

  void recompute(LayerContext& c) const override {
    const auto [normed, inverse_rms, gate_up, activated] = take<4>(c.saved.first(4));

    run_norm(c, sizes_.eps, normed, inverse_rms);
    c.operations.run(device::op::Swiglu{.gate_up = gate_up, .activated = activated});
  }

  void backward(LayerContext& c) const override {
    const auto [norm, gate, up, down] = take<4>(c.parameters.first(4));
    const auto [dnorm, dgate, dup, ddown] = take<4>(c.parameter_gradients.first(4));
    const auto [add_norm, add_gate, add_up, add_down] = take<4>(c.accumulate.first(4));
    const auto [normed, inverse_rms, gate_up, activated] = take<4>(c.saved.first(4));
    const auto [dactivated, dnormed, workspace] = take<3>(c.scratch.first(3));
    const auto of_gate_up = adapters_.backward(c, kGateUpProduct),
               of_down = adapters_.backward(c, kDownProduct);

    c.operations.run(device::op::ProjectionBackward{.dy = c.gradient,
                                                    .x = activated,
                                                    .weight = down,
                                                    .dx = dactivated,
                                                    .dweight = ddown,
                                                    .accumulate_dweight = add_down,
                                                    .adapters = of_down});
    // gate_up becomes its own gradient.
    c.operations.run(device::op::GateUpSwigluBackward{.dactivated = dactivated,
                                                      .gate_up = gate_up,
                                                      .x = normed,
                                                      .weight = stacked({gate, up}),
                                                      .dx = dnormed,
                                                      .dweight = stacked({dgate, dup}),
                                                      .accumulate_dweight = alike({add_gate, add_up}),
                                                      .adapters = of_gate_up});
    // The gradient already holds that of the residual branch.
    run_norm_backward(c, dnormed, inverse_rms, Accumulate::yes, workspace);
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
