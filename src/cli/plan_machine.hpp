// SPDX-License-Identifier: Apache-2.0
// What `llampi plan` knows of the machine that it plans for: its memory, its links, its speed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llampi/plan/machine.hpp"
#include "llampi/plan/report.hpp"
#include "llampi/plan/run_time.hpp"
#include "llampi/train/compiled_run.hpp"

namespace llampi::cli {

inline constexpr const char* kAsConfigured = "auto";

/// As options give it; 0: not given.
struct MachineRequest {
  std::string device = kAsConfigured;
  double memory_gib = 0;
  double host_memory_gib = 0;
  std::string machine;
  double tokens = 0;
  double tflops = 0, in_node_gb_s = 0, network_gb_s = 0, latency_us = 0;
};

/// What may be given for the device.
std::vector<std::string> planned_devices();

/// @param shape its ranks, as they are asked for @throws UserError for options that contradict each other
plan::Machine machine_of(const MachineRequest& request, const train::Config& config, train::RunShape shape);

/// None if no seconds are asked for. @throws UserError for figures that are missing
std::optional<plan::Figures> figures_of(const MachineRequest& request, const plan::Machine& machine,
                                        const train::Config& config, const std::vector<int>& node_of_rank);

}  // namespace llampi::cli
