// SPDX-License-Identifier: Apache-2.0
// How long a step takes: its list of actions, run on a clock instead of a device.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "llampi/fsdp/compiled_model.hpp"
#include "llampi/plan/collective_time.hpp"

namespace llampi::plan {

/// What a rank computes and sends in a second.
struct Speed {
  double flops_per_second =
      0;  ///< of a step's forward and backward passes; what a run reports as MFU times the device's peak
  NetworkSpeed network;
  int ranks_per_node = 1;
  Route route = Route::two_levels;
};

struct StepTime {
  double seconds = 0;
  double compute_seconds = 0;  ///< of the stages, recomputation included
  /// While nothing is computed, as collectives (or copies between host and device) are waited for.
  double waiting_seconds() const { return seconds - compute_seconds; }
};

/// One strategy in a comparison.
struct StrategyTime {
  fsdp::Strategy strategy = fsdp::Strategy::full_shard;
  std::optional<bool> fits;  ///< none: not known
  StepTime time;
};

/// Of each action of the step what it takes, nothing else under way. Stages share Model::flops_per_token() in proportion
/// to their matrices, a backward pass being two forwards. Copies between host and device have a link of their own. What only
/// moves memory of the device (casts, sums, norm, update) takes nothing.
/// @param options, groups those that `compiled` was compiled with
std::vector<Phases> action_phases(const model::Model& model, const fsdp::EngineOptions& options,
                                  const fsdp::RankGroups& groups, const fsdp::CompiledModel& compiled,
                                  const Speed& speed);

/// Each stream has its actions one after another, each after those that it waits for. All ranks do the same at the same time.
/// @param phases of each action
StepTime time_of_step(const std::vector<fsdp::Action>& actions, const std::vector<Phases>& phases);

}  // namespace llampi::plan
