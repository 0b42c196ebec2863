// SPDX-License-Identifier: Apache-2.0
// How fast this machine is: the work of `llampi bench`.
#pragma once

#include <string>

#include "llampi/comm/forward.hpp"
#include "llampi/core/log.hpp"
#include "llampi/measure/result.hpp"
#include "llampi/measure/settings.hpp"
#include "llampi/plan/machine.hpp"
#include "llampi/train/config.hpp"

namespace llampi::measure {

/// Steps of the configured model on random tokens, by phase and with each strategy; single operations; collectives; a checkpoint.
/// Collective; the same result on all ranks.
/// @param config as `llampi plan` takes it: model, data.seq_len, train, fsdp, activation, optimizer and run are read
/// @throws UserError on all ranks for what train() would refuse of it, or a folder that cannot be written
Result measure(comm::World& world, const train::Config& config, const Settings& settings, const Log& log);

/// The figures of this machine, by least squares over its operations, and its links by the same over its collectives.
/// @param result of measure(), with single operations
/// @param log gets a warning if times of collectives hardly grow with their bytes, as when another program runs too, and if the ranks
/// are on several nodes, with several on some: then there are no figures of links
plan::MachineSpeed calibrate(const Result& result, const std::string& name, const Log& log);

}  // namespace llampi::measure
