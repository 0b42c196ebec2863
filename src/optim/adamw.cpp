// SPDX-License-Identifier: Apache-2.0
#include "llampi/optim/adamw.hpp"

#include <cmath>

namespace llampi::optim {

device::UpdateScalars scalars_of_update(const AdamWConstants& constants, std::int64_t step,
                                        double learning_rate) {
  const auto t = static_cast<double>(step);
  return {.step = t,
          .learning_rate = learning_rate,
          .bias_correction1 = 1 - std::pow(constants.beta1, t),
          .bias_correction2 = 1 - std::pow(constants.beta2, t)};
}

}  // namespace llampi::optim
