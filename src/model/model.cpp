#include "llampi/model/model.hpp"

namespace llampi {

void Stage::recompute(StageContext&) const {
  throw Error("internal error: this stage has nothing to recompute");
}

}  // namespace llampi
