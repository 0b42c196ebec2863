// SPDX-License-Identifier: Apache-2.0
// The low-rank adapters of a layer: what they add to its spec, and the operands of its products.
#pragma once

#include <string>
#include <vector>

#include "llampi/device/low_rank.hpp"
#include "llampi/model/layer_support.hpp"
#include "llampi/model/lora.hpp"

namespace llampi::model {

/// An adapter of one linear map of a layer.
struct Adapter {
  int a = 0, b = 0;         ///< indices into Model::parameters()
  int product = 0;          ///< of the layer, by its own numbering
  std::int64_t first = 0;   ///< the map's first column of the product's result
  std::int64_t in = 0;      ///< width of its input
  std::string module = {};  ///< "model.layers.0.self_attn.q_proj"
};

/// Their parameters, saved tensors and scratch stand after those of the layer itself.
class Adapters {
 public:
  Adapters() = default;  ///< of a layer whose own weights are trained
  Adapters(std::vector<Adapter> adapters, const LoraConfig& config);

  bool empty() const { return adapters_.empty(); }
  /// Whether gradients of weights are made of this product's input: of its own weight, or only of adapters.
  bool learns_from(int product) const;
  std::vector<int> parameters() const;
  void extend(LayerSpec& spec, BatchShape batch, DType compute) const;

  /// Of the product's operation; valid as long as the context.
  std::vector<device::LowRank> forward(const LayerContext& c, int product) const;
  std::vector<device::LowRank> backward(const LayerContext& c, int product) const;
  /// In place of a product whose result is not needed.
  void run_down(const LayerContext& c, int product, const Tensor& x) const;

 private:
  std::vector<device::LowRank> of_product(const LayerContext& c, int product, std::size_t scratch) const;

  std::vector<Adapter> adapters_;
  LoraConfig config_;
  bool frozen_ = false;      ///< the layer's own weights
  std::int64_t widest_ = 0;  ///< of the inputs
};

}  // namespace llampi::model
