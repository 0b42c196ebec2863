// SPDX-License-Identifier: Apache-2.0
#include "llampi/optim/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace llampi::optim {

double LearningRateSchedule::at(std::int64_t step) const {
  if (step <= warmup_steps) return lr * static_cast<double>(step) / static_cast<double>(warmup_steps);
  const double length = static_cast<double>(total_steps - warmup_steps);
  const double progress = length > 0 ? std::min(1.0, static_cast<double>(step - warmup_steps) / length) : 1.0;
  switch (decay) {
    case Decay::cosine:
      return min_lr + 0.5 * (lr - min_lr) * (1 + std::cos(std::numbers::pi * progress));
    case Decay::linear:
      return lr + (min_lr - lr) * progress;
    case Decay::constant:
      break;
  }
  return lr;
}

}  // namespace llampi::optim
