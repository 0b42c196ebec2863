// SPDX-License-Identifier: Apache-2.0
#include "cli/manual.hpp"

#include <algorithm>

#include "cli/command_line.hpp"
#include "cli/suggestion.hpp"
#include "llampi/core/split.hpp"

namespace llampi::cli {
namespace {

/// "auto", "llama3.1"; not "FILE", "N", "skip N".
bool is_word(const std::string& text) {
  return !text.empty() &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789._-") == std::string::npos;
}

void add_once(std::vector<std::string>& words, const std::string& word) {
  if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
}

}  // namespace

std::string help_text(const Manual& manual) { return manual.usage + options_help(manual.options); }

ValueHint hint_of(const Option& option) {
  ValueHint hint;
  if (option.flag) return hint;
  for (const auto& word : words_of(option)) add_once(hint.words, word);
  for (const auto& name : split(value_name(option), '|')) {
    if (is_word(name)) add_once(hint.words, name);
    hint.files = hint.files || name == "FILE" || name == "FOLDER";
  }
  return hint;
}

bool is_key(const Option& option) { return !section_of(option.key).empty(); }

}  // namespace llampi::cli
