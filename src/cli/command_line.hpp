// Command lines of options and arguments, and their help.
#pragma once

#include <string>
#include <vector>

#include "cli/option.hpp"

namespace llampi::cli {

/// What stands behind `llampi <command>`.
using Arguments = std::vector<std::string>;

struct CommandLine {
  std::vector<Setting> settings;  ///< in order, each of a known key, none twice
  std::vector<std::string> positional;
};

/// Takes `--key=value`, `--key value`, `--flag` and arguments apart.
/// @throws UserError for an unknown option (naming the nearest), one given twice or without its value
CommandLine parse_command_line(const Arguments& arguments, const std::vector<Option>& options);

/// The same, setting each option's target; returns the arguments. More than `max_positional` are an error.
std::vector<std::string> assign_command_line(const Arguments& arguments, const std::vector<Option>& options,
                                             std::size_t max_positional);

bool asks_for_help(const Arguments& arguments);

/// The options with value names, defaults and what they do. Keys `section.key` are grouped by section.
std::string options_help(const std::vector<Option>& options);

/// "--seq-len is missing; ..." where `given` is false. @throws UserError
void require_option(bool given, const std::string& command, const std::string& option);

}  // namespace llampi::cli
