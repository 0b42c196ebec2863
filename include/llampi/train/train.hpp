// SPDX-License-Identifier: Apache-2.0
// Trains a run: combines all other parts. Independent of the command line.
#pragma once

#include <functional>
#include <string>

#include "llampi/comm/forward.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/log.hpp"
#include "llampi/train/config.hpp"
#include "llampi/train/outcome.hpp"

namespace llampi::train {

/// Trains, or continues, the run that `config` describes. Collective over the world. A file `stop` in run.dir
/// stops it as request_stop() does; it is removed then.
/// @param texts `config`, written into the run folder and into checkpoints with what the run really does
/// otherwise, and compared with the text in the checkpoint that the run continues from
/// @param complain told why the watchdog (run.watchdog_seconds) ends the job: several lines, on one rank,
/// from a thread
/// @throws UserError and CommonError, the same on every rank
Outcome train(comm::World& world, const Config& config, const ConfigTexts& texts, const Log& log,
              const std::function<void(const std::string& summary)>& complain = {});

}  // namespace llampi::train
