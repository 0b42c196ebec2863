// SPDX-License-Identifier: Apache-2.0
// `llampi plan --tune`: the search of plan/tune.hpp over the keys of a configuration.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/plan_machine.hpp"
#include "llampi/plan/tune.hpp"

namespace llampi::cli {

/// All that tuning keeps as it is.
struct TuneQuestion {
  const train::Config& config;
  const std::set<std::string>& kept;  ///< keys, with the values that they have
  train::RunShape shape;
  const plan::Machine& machine;  ///< with its ranks
  const Figures& figures;
  bool may_change_numbers = false;
};

struct TunedConfig {
  train::Config config;
  plan::Tuning tuning;
  std::optional<plan::TimedChoice> configured;  ///< none: it cannot be had
  std::vector<std::string> notes;               ///< sentences: what was not searched, and why
};

/// @throws UserError if nothing fits, or the global batch, which is kept, cannot be divided among the ranks
TunedConfig tune_config(const TuneQuestion& question);

/// Keys with other values than they had.
std::vector<plan::TunedKey> changed_keys(const train::Config& before, const train::Config& after);

}  // namespace llampi::cli
