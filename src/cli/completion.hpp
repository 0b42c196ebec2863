// SPDX-License-Identifier: Apache-2.0
// Completion of the command line, and the manual page: both are made of the commands' options.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.hpp"

namespace llampi::cli {

/// A script that bash, zsh or fish reads, and that names every command, option and word of a value.
std::string bash_completion(const std::vector<Command>& commands);
std::string zsh_completion(const std::vector<Command>& commands);
std::string fish_completion(const std::vector<Command>& commands);

/// llampi(1), for man.
std::string man_page(const std::vector<Command>& commands);

}  // namespace llampi::cli
