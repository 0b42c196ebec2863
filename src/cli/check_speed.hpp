// SPDX-License-Identifier: Apache-2.0
// llampi check --machine: what was measured against what the plan predicts with the figures of a machine.
#pragma once

#include <string>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "llampi/train/config.hpp"
#include "llampi/train/preflight.hpp"

namespace llampi::cli {

/// A step and collectives are slow below this part of the predicted rate. The plan's own error is up to 15 %.
inline constexpr double kSlowStepShare = 0.75, kSlowCollectiveShare = 0.5;

struct MeasuredCollective {
  std::string name;  ///< "all_gather"
  double seconds = 0;
  double bus_rate = 0;            ///< GB/s
  double predicted_bus_rate = 0;  ///< likewise
};
struct MachineComparison {
  std::vector<train::PreflightCheck> checks;  ///< "bandwidth" and "speed", in this order
  std::vector<MeasuredCollective> collectives;
  double predicted_tokens_per_second = 0;  ///< 0: not predicted
};

/// Measures all-gather, reduce-scatter and all-reduce of all ranks, and compares them, and the steps of `figures`, with
/// what `llampi plan --machine` predicts for these ranks. What cannot be compared is skipped, with the reason.
/// Collective; the same result on all ranks.
/// @param machine_name of a machine or a file that plan::read_machine() can read
MachineComparison compare_with_machine(comm::World& world, const train::Config& config,
                                       const std::string& machine_name,
                                       const train::PreflightFigures& figures);

}  // namespace llampi::cli
