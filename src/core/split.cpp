// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/split.hpp"

namespace llampi {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return parts;
}

std::vector<std::string> lines_of(std::string_view text) { return split(text, '\n'); }

std::string_view trimmed(std::string_view text, std::string_view spaces) {
  const auto begin = text.find_first_not_of(spaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(spaces) - begin + 1);
}

}  // namespace llampi
