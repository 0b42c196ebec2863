// SPDX-License-Identifier: Apache-2.0
// What is known of a command: help, manual page and completion are made of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/option.hpp"

namespace llampi::cli {

struct Manual {
  std::string usage = {};                    ///< "Usage: ...", and what the command does
  std::vector<Option> options = {};          ///< their values are the defaults
  std::shared_ptr<const void> targets = {};  ///< what the options set
  bool takes_files = false;                  ///< as arguments that are no options
  std::vector<std::string> words = {};       ///< likewise, one of these
};

/// Of a command whose options are options_of() a request.
template <class Request>
Manual manual_of(const char* usage) {
  const auto request = std::make_shared<Request>();
  return {.usage = usage, .options = options_of(*request), .targets = request};
}

/// What `--help` prints.
std::string help_text(const Manual& manual);

/// What may be written for the value of an option.
struct ValueHint {
  std::vector<std::string> words = {};
  bool files = false;
};
ValueHint hint_of(const Option& option);

/// "run" of "run.device"; the keys of the configuration have a section, options of single commands have none.
bool is_key(const Option& option);

}  // namespace llampi::cli
