// SPDX-License-Identifier: Apache-2.0
// The device and the links of a run: the same in a run, in a check before it and in a benchmark.
#pragma once

#include "llampi/comm/compute.hpp"
#include "llampi/comm/forward.hpp"
#include "llampi/core/config_error.hpp"
#include "llampi/core/log.hpp"
#include "llampi/train/config.hpp"

namespace llampi::train {

/// What the configuration asks for. Collective. @throws as comm::open_compute()
comm::Compute open_compute_of_run(comm::World& world, const Config& config,
                                  const ConfigError::Naming& name_of, const Log& log);

}  // namespace llampi::train
