// SPDX-License-Identifier: Apache-2.0
// How long a step takes: its list of actions, run on a clock instead of a device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llampi/fsdp/added_work.hpp"
#include "llampi/fsdp/compiled_model.hpp"
#include "llampi/plan/collective_time.hpp"
#include "llampi/plan/compute_time.hpp"

namespace llampi::plan {

/// What a rank computes and sends in a second.
struct Speed {
  double flops_per_second =
      0;  ///< of a step's forward and backward passes; what a run reports as MFU times the device's peak
  NetworkSpeed network;
  std::vector<int> node_of_rank;  ///< of the ranks of the world
  Route route = Route::two_levels;
  /// Of what a step computes, instead of flops_per_second: costs_of() a machine.
  std::optional<Terms> costs = {};
  comm::Backend backend = comm::Backend::nccl;
  /// All-gathers and reductions run one after another: fsdp.nccl_split_share.
  bool shares_communicators = false;
  double host_link_bytes_per_second = fsdp::kHostBytesPerSecond;  ///< each direction
};

struct StepTime {
  double seconds = 0;
  /// During which the device computes: recomputation included, norm and update where costs are known.
  double compute_seconds = 0;
  /// While nothing is computed, as collectives (or copies between host and device) are waited for.
  double waiting_seconds() const { return seconds - compute_seconds; }
};

/// One strategy in a comparison.
struct StrategyTime {
  fsdp::Strategy strategy = fsdp::Strategy::full_shard;
  std::optional<bool> fits;  ///< none: not known
  StepTime time;
  std::string impossible = {};  ///< why these ranks cannot have it, in a sentence; empty: they can
};

/// Of each action of the step what it takes, nothing else under way. Layers share fsdp::forward_flops() in proportion
/// to their matrices, and backward passes take what fsdp::of_action() says; what only moves memory of the device (casts, sums, norm, update)
/// takes nothing. With Speed::costs, each action takes what its work costs. Copies between host and device have a link of their own.
/// @param options, mesh those that `compiled` was compiled with
/// @param work of each action, with Speed::costs: work_of_step()
std::vector<Phases> action_phases(const model::Model& model, const fsdp::EngineOptions& options,
                                  const fsdp::DeviceMesh& mesh, const fsdp::CompiledModel& compiled,
                                  const Speed& speed, const std::vector<ActionWork>& work = {});

/// Each stream has its actions one after another, each after those that it waits for. All ranks do the same at the same time.
/// @param phases of each action @param shares_communicators as Speed has it
StepTime time_of_step(const std::vector<fsdp::Action>& actions, const std::vector<Phases>& phases,
                      bool shares_communicators = false);

}  // namespace llampi::plan
