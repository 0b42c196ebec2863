// SPDX-License-Identifier: Apache-2.0
// Regular expressions that users give.
#pragma once

#include <regex>
#include <string>

namespace llampi {

/// Of ECMAScript. std::regex recurses into an expression, so its length is limited.
/// @param field as ConfigError names it
/// @throws ConfigError if it is none, or has more than 1,000 characters
std::regex parse_regex(const std::string& text, const std::string& field);

}  // namespace llampi
