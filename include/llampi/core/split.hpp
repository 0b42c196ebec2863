// SPDX-License-Identifier: Apache-2.0
// Text in memory, part by part.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace llampi {

/// What is between separators; after the last one only if it is not empty, as std::getline() has it.
std::vector<std::string> split(std::string_view text, char separator);
/// The same of lines.
std::vector<std::string> lines_of(std::string_view text);
/// Without these characters at both ends.
std::string_view trimmed(std::string_view text, std::string_view spaces = " \t\r\n");

}  // namespace llampi
