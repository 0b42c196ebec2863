// SPDX-License-Identifier: Apache-2.0
// A model made of layers that follow each other, each with parameters of its own: what most small models are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "llampi/model/model.hpp"

namespace llampi::model {

/// Modules directly below the root, one for each layer, in order.
class Sequential final : public Model {
 public:
  /// @param type the model's class name, as the wrap policies `size` and `modules` see it
  /// @param block_type the type of the modules that the wrap policy `transformer` makes units of
  /// @param vocabulary number of different token ids
  Sequential(std::string type, std::string block_type, std::int64_t vocabulary);

  /// The index that the first parameter of the next module has: the layer's LayerSpec names them by index.
  int next_parameter() const { return static_cast<int>(parameters_.size()); }
  /// Adds a module. The last one's layer is the loss.
  /// @param parameters in the order of their indices; names are prefixed with the module's ("blocks.0.w1"),
  /// Parameter::module is set here
  void add(const std::string& name, const std::string& type, std::vector<Parameter> parameters,
           std::unique_ptr<Layer> layer);

  const std::vector<Module>& modules() const override { return modules_; }
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  const std::vector<std::unique_ptr<Layer>>& layers() const override { return layers_; }
  std::string block_type() const override { return block_type_; }
  std::int64_t vocabulary() const override { return vocabulary_; }

 private:
  std::string block_type_;
  std::int64_t vocabulary_;
  std::vector<Module> modules_;
  std::vector<Parameter> parameters_;
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace llampi::model
