// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/finite_weights.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "llampi/comm/exchange.hpp"
#include "llampi/core/text.hpp"

namespace llampi::checkpoint {

void FiniteWeights::read(int tensor, std::int64_t begin, std::int64_t elements, float* values) const {
  source_->read(tensor, begin, elements, values);
  const auto found =
      std::count_if(values, values + elements, [](float value) { return !std::isfinite(value); });
  if (found == 0) return;
  const std::lock_guard lock(mutex_);
  not_finite_ += found;
  first_ = std::min(first_, std::int64_t{tensor});
}

void FiniteWeights::warn(comm::World& world, const std::string& name, const Log& log) const {
  const std::int64_t found = comm::sum_over_ranks(world, not_finite_);
  std::int64_t first = first_;
  comm::min_over_ranks(world, std::span(&first, 1));
  if (found == 0) return;
  log.warning("{} of {} NaN or infinite, the first in {}; a model with such weights computes NaN",
              count(found, "weight"), name + (found == 1 ? " is" : " are"),
              tensors()[static_cast<std::size_t>(first)].name);
}

}  // namespace llampi::checkpoint
