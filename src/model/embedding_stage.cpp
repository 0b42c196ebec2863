// SPDX-License-Identifier: Apache-2.0
// out = table[tokens]
#include "llampi/model/stage_support.hpp"
#include "model/llama_stages.hpp"

namespace llampi::model {
namespace {

class EmbeddingStage final : public Stage {
 public:
  EmbeddingStage(std::string module, int table, const LlamaSizes& sizes)
      : module_(std::move(module)), table_(table), sizes_(sizes) {}

  StageSpec spec(BatchShape batch, DType compute, const device::OperationSizes&) const override {
    StageSpec spec;
    spec.module = module_;
    spec.parameters = {{.parameter = table_, .forward = true, .backward = false}};
    spec.output = {"embedded", batch.tokens(), sizes_.hidden, compute};
    spec.keeps_input = false;
    return spec;
  }

  void forward(StageContext& c) const override {
    const auto [table] = take<1>(c.parameters);
    c.operations.run(device::op::Embedding{.tokens = c.batch.tokens, .table = table, .x = c.output});
  }

  void backward(StageContext& c) const override {
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

std::unique_ptr<Stage> make_embedding_stage(std::string module, int table, const LlamaSizes& sizes) {
  return std::make_unique<EmbeddingStage>(std::move(module), table, sizes);
}

}  // namespace llampi::model
