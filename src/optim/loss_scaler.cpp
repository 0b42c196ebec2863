// SPDX-License-Identifier: Apache-2.0
#include "llampi/optim/loss_scaler.hpp"

#include <algorithm>

namespace llampi::optim {

void LossScaler::update(bool overflow) {
  if (overflow) {
    scale = std::max(scale / 2, kSmallestScale);
    good_steps = 0;
  } else if (++good_steps >= kGrowthInterval) {
    scale = std::min(scale * 2, kLargestScale);
    good_steps = 0;
  }
}

}  // namespace llampi::optim
