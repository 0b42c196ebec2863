// SPDX-License-Identifier: Apache-2.0
// The predicted time of a run's step, from the figures of a machine.
#pragma once

#include <optional>
#include <vector>

#include "llampi/plan/compute_time.hpp"
#include "llampi/plan/machine.hpp"
#include "llampi/plan/step_time.hpp"
#include "llampi/train/compiled_run.hpp"

namespace llampi::plan {

/// What is known of the speed of ranks.
struct Figures {
  std::optional<MachineSpeed> machine;
  Speed speed;
  AttentionKernels attention = AttentionKernels::native;
  double share = 1;  ///< of a node's cores, that a rank has

  /// Whether each operation is counted.
  bool by_operation() const { return machine && speed.flops_per_second == 0; }
};

/// The actions of a step with what they take.
struct TimedActions {
  Speed speed;                   ///< with costs where each operation is counted
  std::vector<ActionWork> work;  ///< likewise
  std::vector<Phases> phases;
  StepTime time = {};  ///< of all
};
TimedActions time_actions(const train::CompiledRun& run, const Figures& figures);
/// @param options of the run, but for the room for attention
TimedActions time_actions(const train::CompiledRun& run, const fsdp::EngineOptions& options,
                          const Figures& figures);

}  // namespace llampi::plan
