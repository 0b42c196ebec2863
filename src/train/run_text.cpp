// SPDX-License-Identifier: Apache-2.0
#include "llampi/train/run_text.hpp"

#include <string_view>

#include "llampi/core/split.hpp"
#include "llampi/core/text.hpp"
#include "llampi/train/renamed_values.hpp"

namespace llampi::train {
namespace {

constexpr std::string_view kNote = "# ";

std::string found(const std::map<std::string, std::string>& map, const std::string& key) {
  const auto match = map.find(key);
  return match == map.end() ? "" : match->second;
}

/// "# data.train: text"
void read_note(const std::string& line, RunText& result) {
  const auto colon = line.find(": ");
  if (colon == std::string::npos) return;
  const std::string key = line.substr(kNote.size(), colon - kNote.size());
  if (key.find('.') == std::string::npos || key.find(' ') != std::string::npos) return;
  result.notes[key] = trimmed(std::string_view(line).substr(colon + 2));
}

/// Calls visit(key, value, line) for each line, with an empty key for those that set none.
template <class Visitor>
void for_each_line(const std::string& text, const Visitor& visit) {
  std::string section;
  for (const auto& line : lines_of(text)) {
    const std::string code(trimmed(std::string_view(line).substr(0, line.find('#'))));
    const auto equals = code.find('=');
    std::string key, value;
    if (code.starts_with('[') && code.ends_with(']')) {
      section = code.substr(1, code.size() - 2) + ".";
    } else if (equals != std::string::npos) {
      key = section + std::string(trimmed(std::string_view(code).substr(0, equals)));
      value = trimmed(std::string_view(code).substr(equals + 1));
    }
    visit(key, value, line);
  }
}

}  // namespace

std::string RunText::value(const std::string& key) const { return found(values, key); }
std::string RunText::note(const std::string& key) const { return found(notes, key); }

RunText read_run_text(const std::string& text) {
  RunText result;
  for_each_line(text, [&](const std::string& key, const std::string& value, const std::string& line) {
    if (!key.empty()) {
      result.values[key] = current_value(key, value);
    } else if (line.starts_with(kNote)) {
      read_note(line, result);
    }
  });
  return result;
}

std::string with_value(const std::string& text, const std::string& key, const std::string& value) {
  std::string result;
  for_each_line(text, [&](const std::string& found_key, const std::string&, const std::string& line) {
    result +=
        found_key == key ? key.substr(key.find('.') + 1) + (value.empty() ? " =" : " = ") + value : line;
    result += '\n';
  });
  return result;
}

std::string with_note(const std::string& text, const std::string& key, const std::string& note) {
  return text + std::string(kNote) + key + ": " + replace_controls(note, ' ') + "\n";
}

}  // namespace llampi::train
