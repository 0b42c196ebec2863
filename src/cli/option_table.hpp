// SPDX-License-Identifier: Apache-2.0
// The one table of the keys of `llampi train`: command line, environment, configuration file, help and the
// resolved configuration are all readings of it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "cli/option.hpp"
#include "llampi/plan/tune.hpp"
#include "llampi/train/config.hpp"

namespace llampi::cli {

/// Every key `section.key`, section by section, bound to the members of `config`, which must outlive the
/// table.
std::vector<Option> option_table(train::Config& config);

/// Every key with its value as text.
std::map<std::string, std::string> values_of(const train::Config& config);
/// Keys with other values than they had.
std::vector<plan::TunedKey> changed_keys(const train::Config& before, const train::Config& after);
/// Whether none of these keys is among them.
bool are_kept(const std::set<std::string>& keys, const train::Config& before, const train::Config& after);

}  // namespace llampi::cli
