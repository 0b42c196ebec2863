#include "llampi/model/model.hpp"

namespace llampi::model {

void Stage::recompute(StageContext&) const {
  throw Error("internal error: this stage has nothing to recompute");
}

std::int64_t Model::parameter_elements() const {
  std::int64_t elements = 0;
  for (const auto& parameter : parameters()) elements += parameter.elements();
  return elements;
}

}  // namespace llampi::model
