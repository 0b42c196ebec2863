// SPDX-License-Identifier: Apache-2.0
// The option of commands that compute with a model and an adapter.
#pragma once

#include <string>

#include "cli/option.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/log.hpp"

namespace llampi::cli {

/// `--adapter`
Option adapter_option(std::string& adapter);

/// Makes files of what --weights and --adapter name on rank 0, of which the second may be empty. Adapters that are given as weights
/// are the adapter, and the weights are then the base that their file names. Collective: every rank gets both.
/// @throws UserError on every rank if that is not there
void find_model(comm::World& world, std::string& weights, std::string& adapter, const Log& log);

/// The base that the file of adapters names, if it is there; otherwise empty.
std::string base_of(const std::string& adapter);

}  // namespace llampi::cli
