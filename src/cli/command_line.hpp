// SPDX-License-Identifier: Apache-2.0
// Command lines of options and arguments, and their help.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "cli/option.hpp"
#include "llampi/core/log.hpp"

namespace llampi::cli {

/// What stands behind `llampi <command>`.
using Arguments = std::vector<std::string>;

struct CommandLine {
  std::vector<Setting> settings;  ///< each of a known key, none twice: the last one counts
  std::vector<std::string> positional;
  std::vector<std::string> notes;  ///< sentences about options that were given twice, with different values

  bool has(std::string_view key) const {
    return std::ranges::find(settings, key, &Setting::key) != settings.end();
  }
};

/// Takes `--key=value`, `--key value`, `--flag` and arguments apart.
/// @throws UserError for an unknown option (naming what may be meant) or one without its value
CommandLine parse_command_line(const Arguments& arguments, const std::vector<Option>& options);

/// The same, setting each option's target. More than `max_positional` arguments are an error. `log` is given the notes.
CommandLine assign_command_line(const Arguments& arguments, const std::vector<Option>& options,
                                std::size_t max_positional, const Log& log);

bool asks_for_help(const Arguments& arguments);

/// The options with value names, defaults and what they do. Keys `section.key` are grouped by section.
std::string options_help(const std::vector<Option>& options);

/// "--seq-len is missing; ..." where `given` is false. @throws UserError
void require_option(bool given, const std::string& command, const std::string& option);

}  // namespace llampi::cli
