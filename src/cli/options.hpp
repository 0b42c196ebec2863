// SPDX-License-Identifier: Apache-2.0
// The configuration of `llampi train` from its four sources.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cli/command_line.hpp"
#include "cli/manual.hpp"
#include "llampi/train/config.hpp"

namespace llampi::cli {

/// A plan needs neither data nor a number of steps.
enum class Purpose : std::uint8_t { train, plan };

/// From the command line (`--config FILE`, `--section.key=value`), then this process's environment
/// (LLAMPI_SECTION_KEY), then the file, then the defaults: what stands earlier wins. Paths are relative to
/// the current folder, wherever the file is. Values that another source overrides are not looked at.
/// @param log told which value counts of an option that is given twice
/// @param more options of the command, besides `--config` and the keys; their targets are set
/// @param given if not null: the keys that some source names are added to it
/// @param above_file if not null: likewise, of what stands before the file: the command line and the environment
/// @throws UserError naming key, value, where it came from and what to do
train::Config resolve_config(const Arguments& arguments, const Log& log, Purpose purpose = Purpose::train,
                             const std::vector<Option>& more = {}, std::set<std::string>* given = nullptr,
                             std::set<std::string>* above_file = nullptr);

/// For commands that need no batch of a run: if train.global_batch is not in `given`, it becomes a multiple of ranks x
/// train.micro_batch, is added to `given`, and `log` is told.
void choose_global_batch(train::Config& config, int ranks, std::set<std::string>& given, const Log& log);

/// Every key, section by section; parse_ini() reads the identical configuration from it.
/// @param given if not null: all other keys are written as comments
std::string to_ini(const train::Config& config, const std::set<std::string>* given = nullptr);

/// @param name of the file, for errors
train::Config parse_ini(const std::string& text, const std::string& name, Purpose purpose = Purpose::train);

/// With `--config` and every key added.
Manual with_keys(Manual manual);

}  // namespace llampi::cli
