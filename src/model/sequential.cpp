// SPDX-License-Identifier: Apache-2.0
#include "llampi/model/sequential.hpp"

#include <utility>

namespace llampi::model {

Sequential::Sequential(std::string type, std::string block_type, std::int64_t vocabulary)
    : block_type_(std::move(block_type)), vocabulary_(vocabulary), modules_{{"", std::move(type), -1}} {}

void Sequential::add(const std::string& name, const std::string& type, std::vector<Parameter> parameters,
                     std::unique_ptr<Layer> layer) {
  for (auto& parameter : parameters) {
    parameter.name = name + "." + parameter.name;
    parameter.module = static_cast<int>(modules_.size());
    parameters_.push_back(std::move(parameter));
  }
  modules_.push_back({name, type, 0});
  layers_.push_back(std::move(layer));
}

}  // namespace llampi::model
