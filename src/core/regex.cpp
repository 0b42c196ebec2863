// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/regex.hpp"

#include <fmt/format.h>

#include "llampi/core/config_error.hpp"

namespace llampi {

std::regex parse_regex(const std::string& text, const std::string& field) {
  constexpr std::size_t kMost = 1000;
  if (text.size() > kMost) {
    throw ConfigError(
        {.field = field,
         .problem = fmt::format("has a regular expression of {} characters; at most {} are allowed",
                                text.size(), kMost)});
  }
  try {
    return std::regex(text);
  } catch (const std::regex_error&) {
    throw ConfigError({.field = field,
                       .entry = text,
                       .problem = "is not a regular expression (.* matches anything, \\. a dot)"});
  }
}

}  // namespace llampi
