// SPDX-License-Identifier: Apache-2.0
#include "model/adapters.hpp"

#include <algorithm>
#include <utility>

#include "llampi/core/philox.hpp"

namespace llampi::model {

Adapters::Adapters(std::vector<Adapter> adapters, const LoraConfig& config)
    : adapters_(std::move(adapters)), config_(config), frozen_(true) {
  for (const Adapter& adapter : adapters_) widest_ = std::max(widest_, adapter.in);
}

bool Adapters::learns_from(int product) const {
  return !frozen_ || std::ranges::find(adapters_, product, &Adapter::product) != adapters_.end();
}

std::vector<int> Adapters::parameters() const {
  std::vector<int> parameters;
  for (const Adapter& adapter : adapters_) parameters.insert(parameters.end(), {adapter.a, adapter.b});
  return parameters;
}

void Adapters::extend(LayerSpec& spec, BatchShape batch, DType compute) const {
  if (empty()) return;
  const std::int64_t tokens = batch.tokens();
  for (const auto& use : read_in_both(parameters())) spec.parameters.push_back(use);
  for (const Adapter& adapter : adapters_) {
    const std::string map = adapter.module.substr(adapter.module.rfind('.') + 1);
    spec.saved.push_back({map + ".low_rank", tokens, config_.rank, compute});
    spec.backward_scratch.push_back({map + ".dlow_rank", tokens, config_.rank, compute});
  }
  const BufferSpec dropped{"dropped", tokens, widest_, compute};
  if (config_.dropout > 0) spec.forward_scratch.push_back(dropped);
  if (config_.dropout > 0) spec.backward_scratch.push_back(dropped);
}

std::vector<device::LowRank> Adapters::of_product(const LayerContext& c, int product,
                                                  std::size_t scratch) const {
  const std::size_t count = adapters_.size();
  const auto parameters = c.parameters.last(2 * count), saved = c.saved.last(count);
  std::vector<device::LowRank> result;
  for (std::size_t i = 0; i < count; ++i) {
    const Adapter& adapter = adapters_[i];
    if (adapter.product != product) continue;
    result.push_back({.a = parameters[2 * i],
                      .b = parameters[2 * i + 1],
                      .u = saved[i],
                      .first = adapter.first,
                      .scale = config_.scale()});
    if (config_.dropout == 0) continue;
    const RandomStream stream(config_.seed, "dropout " + adapter.module);
    Tensor dropped = c.scratch.last(scratch).back();
    dropped.cols = adapter.in;
    result.back().dropout = {.probability = config_.dropout,
                             .key = stream.key(),
                             .purpose = stream.purpose(),
                             .first_sample = c.batch.first_sample,
                             .seq_len = c.seq_len,
                             .dropped = dropped};
  }
  return result;
}

std::vector<device::LowRank> Adapters::forward(const LayerContext& c, int product) const {
  return empty() ? std::vector<device::LowRank>() : of_product(c, product, 1);
}

std::vector<device::LowRank> Adapters::backward(const LayerContext& c, int product) const {
  if (empty()) return {};
  const std::size_t count = adapters_.size(), scratch = count + (config_.dropout > 0 ? 1 : 0);
  std::vector<device::LowRank> result = of_product(c, product, scratch);
  const auto gradients = c.parameter_gradients.last(2 * count);
  const auto accumulate = c.accumulate.last(2 * count);
  auto of_product = result.begin();
  for (std::size_t i = 0; i < count; ++i) {
    if (adapters_[i].product != product) continue;
    of_product->du = c.scratch.last(scratch)[i];
    of_product->da = gradients[2 * i], of_product->db = gradients[2 * i + 1];
    of_product->accumulate_da = accumulate[2 * i], of_product->accumulate_db = accumulate[2 * i + 1];
    ++of_product;
  }
  return result;
}

void Adapters::run_down(const LayerContext& c, int product, const Tensor& x) const {
  const auto adapters = forward(c, product);
  if (!adapters.empty()) c.operations.run(device::op::LowRankDown{.x = x, .adapters = adapters});
}

}  // namespace llampi::model
