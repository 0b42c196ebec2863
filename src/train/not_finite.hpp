// SPDX-License-Identifier: Apache-2.0
// Steps whose loss or gradient is not finite: where the first such number is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "llampi/comm/forward.hpp"
#include "llampi/core/log.hpp"
#include "llampi/device/device.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/train/config.hpp"
#include "train/metrics.hpp"

namespace llampi::train {

/// Where a number that is not finite came from. The same on all ranks.
struct NotFinite {
  bool in_parameters = false;  ///< they hold one: no step can be finite any more
  /// In words: parameters that hold such a number already (name, element, unit, rank), else the ranks whose own loss is
  /// not finite, and the first unit, in forward order, of whose gradient a shard holds one, with the ranks that
  /// hold these shards.
  std::string where;
};
/// After a step whose loss or gradient is not finite. Collective.
NotFinite find_not_finite(comm::World& world, device::Device& device, fsdp::Engine& engine, double own_loss);

/// Steps whose loss or gradient was not finite, and what train.not_finite says of them.
class NotFiniteSteps {
 public:
  /// Both outlive it.
  NotFiniteSteps(const NotFinitePolicy& policy, const Log& log) : policy_(policy), log_(log) {}

  /// After a step with labels that was finite.
  void finite() { in_a_row_ = 0, was_finite_ = true; }
  /// After one that was not: a warning, or why the run ends. With a gradient norm that is not finite, which all ranks share,
  /// nothing was updated. @param found as find_not_finite() says
  std::optional<std::string> not_finite(const StepMetrics& metrics, const NotFinite& found);
  /// How many steps with labels it is since the last finite one.
  std::int64_t in_a_row() const { return in_a_row_; }
  /// Whether the last step with labels was finite. False before the first one of this job: nothing is known of the state that it
  /// continues from. The state may be of no use then, and should replace no other one.
  bool state_is_usable() const { return was_finite_ && in_a_row_ == 0; }

 private:
  const NotFinitePolicy& policy_;
  const Log& log_;
  std::int64_t all_ = 0, in_a_row_ = 0;
  bool was_finite_ = false;  ///< some step of this job
};

}  // namespace llampi::train
