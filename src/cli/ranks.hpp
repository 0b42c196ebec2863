// SPDX-License-Identifier: Apache-2.0
// Commands that run on all ranks of a job.
#pragma once

#include <functional>

#include "cli/options.hpp"
#include "llampi/comm/forward.hpp"

namespace llampi::cli {

/// Starts MPI, runs `body` and returns its status, the same on all ranks; MPI ends in the ordinary way.
/// A UserError, which `body` must throw on every rank alike, is printed by rank 0 and becomes status 2; a
/// CommonError likewise, with status 1.
/// Anything else is printed by the rank on which it happened and ends the job on all ranks with status 1; so is an error
/// that should have been on every rank, where some do not come within `patience` (seconds): they may wait for this one forever.
int run_on_ranks(const std::function<int(comm::World&)>& body, double patience = 30);

/// The configuration as rank 0 finds it: a variable of the environment or a file that other nodes do not
/// have, or have otherwise, must not make the ranks differ. Collective.
/// @param more options of the command, whose targets are set on rank 0
train::Config resolve_on_rank_0(comm::World& world, const Arguments& arguments, const Log& log,
                                const std::vector<Option>& more = {}, Purpose purpose = Purpose::train);

}  // namespace llampi::cli
