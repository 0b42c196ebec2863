// SPDX-License-Identifier: Apache-2.0
// Products in 8 bits: what is measured once for two casts is what each cast would have measured.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "llampi/model/eager_runner.hpp"
#include "llampi/model/llama.hpp"
#include "support/oracle.hpp"

namespace llampi::test {
namespace {

using namespace model;

constexpr BatchShape kFp8Shape = {.sequences = 1, .seq_len = 128};
constexpr std::size_t kBlocks = 3;

LlamaConfig fp8_config() {
  LlamaConfig config;
  config.vocab_size = 23;
  config.hidden_size = 128;
  config.intermediate_size = 256;
  config.layers = kBlocks;
  config.query_heads = 4;
  config.key_value_heads = 2;
  config.head_dim = 32;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 50;
  return config;
}

device::HostBatch fp8_batch() {
  device::HostBatch batch(kFp8Shape.tokens());
  batch.documents = 1;
  batch.cu_seqlens()[1] = static_cast<std::int32_t>(kFp8Shape.tokens());
  for (std::int32_t t = 0; t < kFp8Shape.tokens(); ++t) {
    const auto token = static_cast<std::size_t>(t);
    batch.tokens()[token] = (t * 7 + t / 5) % 23;
    batch.labels()[token] = t % 9 == 0 ? -1 : (t * 5 + 3) % 23;
    batch.positions()[token] = t;
    batch.valid_labels += batch.labels()[token] >= 0;
  }
  return batch;
}

/// A model on a CPU, and how often each operation has run.
class CountedModel {
 public:
  explicit CountedModel(Fp8Scales scales)
      : model_(make_llama(fp8_config(), Fp8Recipe{.scales = scales})),
        device_(device::make_cpu_device(1)),
        runner_(*model_, *device_, kFp8Shape, DType::float32, Unwritten::nan) {
    for (std::size_t p = 0; p < model_->parameters().size(); ++p) {
      const Tensor tensor = runner_.parameter(p);
      for (std::int64_t i = 0; i < tensor.elements(); ++i)
        tensor.as<float>()[i] = static_cast<float>(oracle::initial_value(model_->parameters()[p], i));
    }
    runner_.upload(fp8_batch(), 0);  // weights are cast uncounted
    device_->decorate([this](const device::Operation& operation, const std::function<void()>& issue) {
      ++counts_[device::name_of(operation)];
      issue();
    });
  }

  /// A whole pass. Layers may leave something for each other.
  void step() { runner_.forward_and_backward(fp8_batch(), 0.01, Accumulate::no); }
  /// The same, with layers that are called one by one.
  void step_by_layers() {
    const std::size_t layers = model_->layers().size();
    runner_.upload(fp8_batch(), 0.01);
    for (std::size_t layer = 0; layer + 1 < layers; ++layer) runner_.forward(layer);
    for (std::size_t layer = layers; layer-- > 0;) runner_.backward(layer, Accumulate::no);
  }
  std::vector<float> gradients() const {
    std::vector<float> all;
    for (std::size_t p = 0; p < model_->parameters().size(); ++p) {
      const Tensor gradient = runner_.gradient(p);
      all.insert(all.end(), gradient.as<float>(), gradient.as<float>() + gradient.elements());
    }
    return all;
  }
  int count(const std::string& operation) { return counts_[operation]; }

 private:
  std::unique_ptr<Model> model_;
  std::unique_ptr<device::Device> device_;
  EagerRunner runner_;
  std::map<std::string, int> counts_;
};

class Fp8Steps : public ::testing::TestWithParam<Fp8Scales> {};
INSTANTIATE_TEST_SUITE_P(Scales, Fp8Steps, ::testing::Values(Fp8Scales::tensor, Fp8Scales::block));

TEST_P(Fp8Steps, WhatALayerMeasuresForAnotherChangesNoBit) {
  CountedModel whole(GetParam()), by_layers(GetParam());
  whole.step();
  by_layers.step_by_layers();
  EXPECT_EQ(whole.gradients(), by_layers.gradients());
}

TEST(Fp8Maxima, NothingIsReadToMeasureItThatAnOperationHasWritten) {
  CountedModel model(Fp8Scales::tensor), by_layers(Fp8Scales::tensor);
  model.step();
  by_layers.step_by_layers();
  // Two weights of each of the two layers of a block, in upload(); the heads of each block, which attention writes; and
  // one gradient: that of the last block's output, or of each layer's.
  constexpr int kWeights = 4 * kBlocks, kHeads = kBlocks;
  EXPECT_EQ(model.count("fp8_maximum"), kWeights + kHeads + 1);
  EXPECT_EQ(by_layers.count("fp8_maximum"), kWeights + kHeads + 2 * static_cast<int>(kBlocks));
}

}  // namespace
}  // namespace llampi::test
