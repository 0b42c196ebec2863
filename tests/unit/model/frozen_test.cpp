// SPDX-License-Identifier: Apache-2.0
// Layers that are given empty gradients of some parameters: everything else keeps its bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "llampi/model/layer_support.hpp"
#include "llampi/model/llama.hpp"
#include "support/oracle.hpp"
#include "unit/model/model_runner.hpp"

namespace llampi::test {
namespace {

using namespace model;

constexpr BatchShape kShape = {.sequences = 1, .seq_len = 11};
constexpr unsigned kSeed = 20240611;

/// Indices of parameters.
using Frozen = std::set<int>;
using Bits = std::vector<std::byte>;

/// A layer whose frozen parameters have no gradient; notes the gradient of the residual stream behind each
/// backward().
class ObservedLayer final : public Layer {
 public:
  ObservedLayer(const Layer& layer, std::vector<LayerSpec::Use> uses, const Frozen& frozen,
                std::vector<Bits>& gradients)
      : layer_(layer), uses_(std::move(uses)), frozen_(frozen), gradients_(gradients) {}

  LayerSpec spec(BatchShape batch, DType compute, const device::OperationSizes& sizes) const override {
    return layer_.spec(batch, compute, sizes);
  }
  void forward(LayerContext& context) const override { layer_.forward(context); }
  void backward(LayerContext& context) const override {
    std::vector<Tensor> wanted(context.parameter_gradients.begin(), context.parameter_gradients.end());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (frozen_.contains(uses_[i].parameter)) wanted[i] = {};
    }
    context.parameter_gradients = wanted;
    layer_.backward(context);
    const auto* bytes = static_cast<const std::byte*>(context.gradient.data);
    gradients_.emplace_back(bytes, bytes + context.gradient.bytes());
  }

 private:
  const Layer& layer_;
  std::vector<LayerSpec::Use> uses_;
  const Frozen& frozen_;
  std::vector<Bits>& gradients_;
};

/// A model of such layers.
class ObservedModel final : public Model {
 public:
  ObservedModel(const Model& model, const device::OperationSizes& sizes, DType compute) : model_(model) {
    for (const auto& layer : model.layers()) {
      layers_.push_back(std::make_unique<ObservedLayer>(
          *layer, layer->spec(kShape, compute, sizes).parameters, frozen, gradients));
    }
  }
  const std::vector<Module>& modules() const override { return model_.modules(); }
  const std::vector<Parameter>& parameters() const override { return model_.parameters(); }
  const std::vector<std::unique_ptr<Layer>>& layers() const override { return layers_; }
  std::vector<BufferSpec> constants(std::int64_t seq_len, DType compute) const override {
    return model_.constants(seq_len, compute);
  }
  void fill_constant(int index, const BufferSpec& spec, void* data) const override {
    model_.fill_constant(index, spec, data);
  }
  std::string block_type() const override { return model_.block_type(); }
  std::int64_t vocabulary() const override { return model_.vocabulary(); }

  Frozen frozen;
  std::vector<Bits> gradients;  ///< in the order of the backward pass

 private:
  const Model& model_;
  std::vector<std::unique_ptr<Layer>> layers_;
};

LlamaConfig tiny(bool tied) {
  LlamaConfig config;
  config.vocab_size = 23;
  config.hidden_size = 15;
  config.intermediate_size = 19;
  config.layers = 2;
  config.query_heads = 3;
  config.key_value_heads = 1;
  config.head_dim = 6;
  config.rms_norm_eps = 1e-5;
  config.tie_word_embeddings = tied;
  return config;
}

device::HostBatch make_batch() {
  std::mt19937 random(kSeed);
  device::HostBatch batch(kShape.tokens());
  for (std::size_t t = 0; t < batch.tokens().size(); ++t) {
    batch.tokens()[t] = static_cast<std::int32_t>(random() % 23);
    batch.labels()[t] = t == 4 ? -1 : static_cast<std::int32_t>(random() % 23);
    batch.positions()[t] = static_cast<std::int32_t>(t);
    batch.valid_labels += t != 4;
  }
  batch.documents = 1;
  batch.cu_seqlens()[1] = static_cast<std::int32_t>(kShape.tokens());
  return batch;
}

struct Case {
  const char* name;
  bool on_cpu, tied;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class FrozenParameters : public ::testing::TestWithParam<Case> {
 protected:
  FrozenParameters()
      : device_(GetParam().on_cpu ? device::make_cpu_device(2) : device::make_reference_device()),
        compute_(GetParam().on_cpu ? DType::float32 : DType::float64),
        llama_(make_llama(tiny(GetParam().tied))),
        model_(*llama_, device_->sizes(), compute_),
        runner_(model_, *device_, kShape, compute_) {
    RecordProperty("seed", static_cast<int>(kSeed));
    runner_.set_parameters(oracle::initial_value);
  }

  struct Result {
    double loss_sum;
    std::vector<Bits> residual;                   ///< behind each layer
    std::vector<std::vector<double>> parameters;  ///< NaN where nothing was written
  };
  Result backward(const Frozen& frozen) {
    model_.frozen = frozen;
    model_.gradients.clear();
    const double loss_sum = runner_.backward(make_batch(), 1.0 / 10);
    Result result{loss_sum, model_.gradients, {}};
    for (int p = 0; p < count(); ++p) result.parameters.push_back(runner_.gradient(p));
    return result;
  }
  int count() const { return static_cast<int>(model_.parameters().size()); }

  void expect_the_rest_unchanged(const Frozen& frozen, const Result& expected) {
    const Result actual = backward(frozen);
    EXPECT_EQ(actual.loss_sum, expected.loss_sum);
    EXPECT_TRUE(actual.residual == expected.residual);
    for (int p = 0; p < count(); ++p) {
      const auto& gradient = actual.parameters[static_cast<std::size_t>(p)];
      const auto& name = model_.parameters()[static_cast<std::size_t>(p)].name;
      if (frozen.contains(p)) {
        EXPECT_TRUE(std::all_of(gradient.begin(), gradient.end(), [](double g) { return std::isnan(g); }))
            << name;
      } else {
        EXPECT_EQ(gradient, expected.parameters[static_cast<std::size_t>(p)]) << name;
      }
    }
  }

  std::unique_ptr<device::Device> device_;
  DType compute_;
  std::unique_ptr<Model> llama_;
  ObservedModel model_;
  ModelRunner runner_;
};

TEST_P(FrozenParameters, LeaveEverythingElse) {
  const Result expected = backward({});
  ASSERT_EQ(expected.residual.size(), model_.layers().size());
  Frozen all;
  for (int p = 0; p < count();) {
    Frozen stack = {p++};
    while (p < count() && model_.parameters()[static_cast<std::size_t>(p)].fused_with_previous)
      stack.insert(p++);
    all.insert(stack.begin(), stack.end());
    expect_the_rest_unchanged(stack, expected);
  }
  expect_the_rest_unchanged(all, expected);
}

TEST_P(FrozenParameters, AreStackedAsOne) {
  for (int p = 1; p < count(); ++p) {
    if (!model_.parameters()[static_cast<std::size_t>(p)].fused_with_previous) continue;
    EXPECT_THROW(backward({p}), Error) << p;
    EXPECT_THROW(backward({p - 1}), Error) << p;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, FrozenParameters,
                         ::testing::Values(Case{"cpu_untied", true, false}, Case{"cpu_tied", true, true},
                                           Case{"reference_untied", false, false},
                                           Case{"reference_tied", false, true}),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(Stacked, IsEmptyOrWhole) {
  std::vector<float> memory(12);
  const Tensor first = tensor(memory.data(), 2, 3), second = tensor(memory.data() + 6, 2, 3);
  EXPECT_EQ(stacked({first, second}).rows, 4);
  EXPECT_FALSE(stacked({Tensor{}, Tensor{}, Tensor{}}));
  EXPECT_EQ(stacked({Tensor{}, Tensor{}}).elements(), 0);
  EXPECT_THROW(stacked({first, Tensor{}}), Error);
  EXPECT_THROW(stacked({Tensor{}, first}), Error);
  EXPECT_THROW(stacked({second, first}), Error);
}

}  // namespace
}  // namespace llampi::test
