// SPDX-License-Identifier: Apache-2.0
// loss_sum += cross-entropy(norm(x) Whead^T, labels); the logits exist for a chunk of rows at a time.
#include <algorithm>

#include "model/llama_layers.hpp"
#include "model/llama_operations.hpp"

namespace llampi::model {
namespace {

class LossLayer final : public Layer {
 public:
  LossLayer(std::string module, std::vector<int> parameters, const LlamaSizes& sizes)
      : module_(std::move(module)), parameters_(std::move(parameters)), sizes_(sizes) {}

  LayerSpec spec(BatchShape batch, DType compute, const device::OperationSizes& sizes) const override {
    const std::int64_t tokens = batch.tokens();
    const DType statistics = statistics_dtype(compute);
    const auto forward_bytes =
        sizes.linear_cross_entropy_workspace(tokens, sizes_.vocabulary, compute, batch.logits_bytes);
    const auto backward_bytes =
        std::max(forward_bytes, sizes.rms_norm_backward_workspace(tokens, sizes_.hidden, compute));
    const BufferSpec normed = {"normed", tokens, sizes_.hidden, compute};
    const BufferSpec inverse_rms = {"inverse_rms", 1, tokens, statistics};
    LayerSpec spec;
    spec.module = module_;
    spec.parameters = read_in_both(parameters_);
    spec.forward_scratch = {normed, inverse_rms, workspace_spec(forward_bytes, statistics)};
    spec.backward_scratch = {normed,
                             inverse_rms,
                             {"dnormed", tokens, sizes_.hidden, compute},
                             workspace_spec(backward_bytes, statistics)};
    return spec;
  }

  void forward(LayerContext& c) const override {
    const auto [norm, head] = take<2>(c.parameters);
    const auto [normed, inverse_rms, workspace] = take<3>(c.scratch);

    if (c.logits) {  // of one token
      const Tensor row = normed.slice_rows(0, 1);
      c.operations.run(device::op::RmsNorm{.x = c.input.slice_rows(c.logits_row, c.logits_row + 1),
                                           .weight = norm,
                                           .eps = sizes_.eps,
                                           .y = row,
                                           .inverse_rms = inverse_rms.slice(0, 1)});
      c.operations.run(device::op::Linear{.x = row, .weight = head, .y = c.logits});
      return;
    }
    run_norm(c, sizes_.eps, normed, inverse_rms);
    c.operations.run(device::op::LinearCrossEntropy{.labels = c.batch.labels,
                                                    .x = normed,
                                                    .weight = head,
                                                    .loss_sum = c.loss_sum,
                                                    .workspace = workspace,
                                                    .logits_bytes = c.logits_bytes,
                                                    .valid_labels = c.batch.valid_labels});
  }

  void backward(LayerContext& c) const override {
    const auto [norm, head] = take<2>(c.parameters);
    const auto [dnorm, dhead] = take<2>(c.parameter_gradients);
    const auto [add_norm, add_head] = take<2>(c.accumulate);
    const auto [normed, inverse_rms, dnormed, workspace] = take<4>(c.scratch);

    run_norm(c, sizes_.eps, normed, inverse_rms);
    c.operations.run(device::op::LinearCrossEntropyBackward{.labels = c.batch.labels,
                                                            .x = normed,
                                                            .weight = head,
                                                            .inverse_tokens = c.inverse_tokens,
                                                            .loss_sum = c.loss_sum,
                                                            .dx = dnormed,
                                                            .dweight = dhead,
                                                            .accumulate_dweight = add_head,
                                                            .workspace = workspace,
                                                            .logits_bytes = c.logits_bytes,
                                                            .valid_labels = c.batch.valid_labels});
    run_norm_backward(c, dnormed, inverse_rms, Accumulate::no, workspace);
  }

 private:
  std::string module_;
  std::vector<int> parameters_;
  LlamaSizes sizes_;
};

}  // namespace

std::unique_ptr<Layer> make_loss_layer(std::string module, std::vector<int> parameters,
                                       const LlamaSizes& sizes) {
  return std::make_unique<LossLayer>(std::move(module), std::move(parameters), sizes);
}

}  // namespace llampi::model
