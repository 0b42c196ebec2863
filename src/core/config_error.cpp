// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/config_error.hpp"

#include <cctype>
#include <utility>

namespace llampi {
namespace {

bool is_letter(char c) { return std::islower(static_cast<unsigned char>(c)) != 0; }

bool belongs_to_name(char c) {
  return is_letter(c) || std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
}

/// `text` with a name for each {field}.
std::string named(const std::string& text, const ConfigError::Naming& name_of) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::size_t end = i + 1;
    const bool begins_name = text[i] == '{' && end < text.size() && is_letter(text[end]);
    while (begins_name && end < text.size() && belongs_to_name(text[end])) ++end;
    if (end > i + 1 && end < text.size() && text[end] == '}') {
      result += name_of(text.substr(i + 1, end - i - 1));
      i = end;
    } else {
      result += text[i];
    }
  }
  return result;
}

std::string sentence_of(const ConfigError::Parts& parts, const ConfigError::Naming& name_of) {
  std::string text = parts.where.empty() ? "" : parts.where + ": ";
  if (!parts.entry.empty()) {
    text += fmt::format("'{}' of {}", parts.entry, name_of(parts.field));
  } else if (!parts.value.empty()) {
    text += fmt::format("{} = {}", name_of(parts.field), parts.value);
  } else if (!parts.field.empty()) {
    text += name_of(parts.field);
  }
  const bool begins = parts.field.empty() || parts.problem.starts_with(',') || parts.problem.starts_with(':');
  text += (begins ? "" : " ") + parts.problem;
  return parts.remedy.empty() ? text : text + "; " + named(parts.remedy, name_of);
}

}  // namespace

ConfigError::ConfigError(Parts parts)
    : UserError(sentence_of(parts, [](const std::string& field) { return field; })),
      parts_(std::move(parts)) {}

std::string sentence_of(const std::exception& error, const ConfigError::Naming& name_of) {
  const auto* config = dynamic_cast<const ConfigError*>(&error);
  return config != nullptr && name_of ? config->sentence(name_of) : error.what();
}

std::string ConfigError::sentence(const Naming& name_of) const { return sentence_of(parts_, name_of); }

}  // namespace llampi
