// SPDX-License-Identifier: Apache-2.0
// `llampi plan --tune`: the search of plan/tune.hpp over the keys of a configuration.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "llampi/core/config_error.hpp"
#include "llampi/plan/report.hpp"
#include "llampi/plan/run_time.hpp"
#include "llampi/plan/tune.hpp"
#include "llampi/train/compiled_run.hpp"
#include "llampi/train/config.hpp"

namespace llampi::plan {

/// All that tuning keeps as it is.
struct TuneQuestion {
  const train::Config& config;
  const std::set<std::string>& kept;  ///< keys, with the values that they have
  /// Whether another configuration has the same values of these keys.
  std::function<bool(const train::Config& other)> keeps;
  ConfigError::Naming name_of;  ///< the keys in what is wrong with a configuration
  const Machine& machine;
  const Figures& figures;
  bool may_change_numbers = false;
};

struct TunedConfig {
  train::Config config;
  Tuning tuning;
  std::optional<TimedChoice> configured;  ///< none: it cannot be had
  std::vector<std::string> notes;         ///< sentences: what was not searched, and why
};

/// @throws UserError if nothing fits, or the global batch, which is kept, cannot be divided among the ranks
TunedConfig tune_config(const TuneQuestion& question);

}  // namespace llampi::plan
