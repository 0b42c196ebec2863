// SPDX-License-Identifier: Apache-2.0
#include "llampi/model/model.hpp"

#include <algorithm>

namespace llampi::model {

std::vector<BufferSpec> Model::constants(std::int64_t, DType) const { return {}; }

void Model::fill_constant(int, const BufferSpec&, void*) const {
  throw Error("internal error: this model has constants, but does not fill them");
}

std::int64_t Model::parameter_elements() const {
  std::int64_t elements = 0;
  for (const auto& parameter : parameters()) elements += parameter.elements();
  return elements;
}

int Model::blocks() const {
  const std::string type = block_type();
  const auto is_block = [&](const Module& module) { return module.type == type; };
  return static_cast<int>(std::ranges::count_if(modules(), is_block));
}

}  // namespace llampi::model
