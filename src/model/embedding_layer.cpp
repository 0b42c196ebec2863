// SPDX-License-Identifier: Apache-2.0
// out = table[tokens]
#include "llampi/model/layer_support.hpp"
#include "model/llama_layers.hpp"

namespace llampi::model {
namespace {

class EmbeddingLayer final : public Layer {
 public:
  EmbeddingLayer(std::string module, int table, const LlamaSizes& sizes)
      : module_(std::move(module)), table_(table), sizes_(sizes) {}

  LayerSpec spec(BatchShape batch, DType compute, const device::OperationSizes&) const override {
    LayerSpec spec;
    spec.module = module_;
    spec.parameters = {{.parameter = table_, .forward = true, .backward = false}};
    spec.output = {"embedded", batch.tokens(), sizes_.hidden, compute};
    spec.keeps_input = false;
    return spec;
  }

  void forward(LayerContext& c) const override {
    const auto [table] = take<1>(c.parameters);
    c.operations.run(device::op::Embedding{.tokens = c.batch.tokens, .table = table, .x = c.output});
  }

  void backward(LayerContext& c) const override {
    const auto [dtable] = take<1>(c.parameter_gradients);
    const auto [add_table] = take<1>(c.accumulate);
    c.operations.run(device::op::EmbeddingBackward{
        .tokens = c.batch.tokens, .dx = c.gradient, .dtable = dtable, .accumulate_dtable = add_table});
  }

 private:
  std::string module_;
  int table_;
  LlamaSizes sizes_;
};

}  // namespace

std::unique_ptr<Layer> make_embedding_layer(std::string module, int table, const LlamaSizes& sizes) {
  return std::make_unique<EmbeddingLayer>(std::move(module), table, sizes);
}

}  // namespace llampi::model
