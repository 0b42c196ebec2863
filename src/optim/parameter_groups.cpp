// SPDX-License-Identifier: Apache-2.0
#include "llampi/optim/parameter_groups.hpp"

#include <algorithm>
#include <cmath>
#include <regex>
#include <sstream>

#include "llampi/core/config_error.hpp"
#include "llampi/core/regex.hpp"
#include "llampi/core/text.hpp"

namespace llampi::optim {
namespace {

using Parameters = std::vector<model::Parameter>;

bool matches(const model::Parameter& parameter, const std::regex& expression) {
  return std::regex_search(parameter.name, expression);
}

/// Such an expression is most often a misspelling, and what it should have done would be missing silently.
std::regex compile_used(const std::string& text, const char* option, const Parameters& parameters) {
  auto expression = parse_regex(text, option);
  const auto used = [&](const model::Parameter& parameter) { return matches(parameter, expression); };
  if (std::none_of(parameters.begin(), parameters.end(), used)) {
    const std::string example =
        parameters.empty() ? "" : " (a name is for example " + parameters.back().name + ")";
    throw ConfigError({.field = option,
                       .entry = text,
                       .problem = "matches no parameter",
                       .remedy = "correct it or remove it" + example});
  }
  return expression;
}

struct Entry {
  std::regex expression;
  double number;
};

Entry parse_entry(const std::string& entry, const char* option, const Parameters& parameters) {
  const auto divider = entry.rfind('=');
  if (divider == std::string::npos || divider == 0) {
    throw ConfigError(
        {.field = option, .entry = entry, .problem = "is not EXPRESSION=NUMBER, for example lm_head=0.5"});
  }
  const auto number = parse_number<double>(std::string_view(entry).substr(divider + 1));
  if (!number || !std::isfinite(*number)) {
    throw ConfigError(
        {.field = option, .entry = entry, .problem = "does not end in a number, as lm_head=0.5 does"});
  }
  if (*number < 0) {
    throw ConfigError(
        {.field = option, .entry = entry, .problem = "has a negative number", .remedy = "use 0 or more"});
  }
  return {compile_used(entry.substr(0, divider), option, parameters), *number};
}

std::vector<Entry> parse_list(const std::string& list, const char* option, const Parameters& parameters) {
  std::vector<Entry> entries;
  std::istringstream words(list);
  for (std::string word; words >> word;) entries.push_back(parse_entry(word, option, parameters));
  return entries;
}

double first_match(const std::vector<Entry>& entries, const model::Parameter& parameter, double otherwise) {
  for (const auto& entry : entries) {
    if (matches(parameter, entry.expression)) return entry.number;
  }
  return otherwise;
}

}  // namespace

std::vector<ParameterGroup> parameter_groups(const Parameters& parameters, const GroupRules& rules) {
  std::regex no_decay;
  if (!rules.no_decay.empty()) no_decay = compile_used(rules.no_decay, "no_decay", parameters);
  const auto weight_decays = parse_list(rules.weight_decays, "weight_decays", parameters);
  const auto lr_factors = parse_list(rules.lr_factors, "lr_factors", parameters);
  std::regex frozen;
  if (!rules.frozen.empty()) frozen = compile_used(rules.frozen, "frozen", parameters);

  const bool adapts =
      std::any_of(parameters.begin(), parameters.end(), [](const auto& p) { return p.adapter; });
  if (adapts && !rules.frozen.empty()) {
    throw ConfigError({.field = "frozen",
                       .entry = rules.frozen,
                       .problem = "cannot be used with adapters: all but these is frozen already",
                       .remedy = "leave it empty, and choose with {lora.targets}"});
  }

  std::vector<ParameterGroup> groups;
  for (const auto& p : parameters) {
    const bool exempt = rules.no_decay.empty() ? p.shape.size() == 1 : matches(p, no_decay);
    groups.push_back({.weight_decay = first_match(weight_decays, p, exempt ? 0 : rules.weight_decay),
                      .learning_rate_factor = first_match(lr_factors, p, 1),
                      .frozen = adapts ? !p.adapter : !rules.frozen.empty() && matches(p, frozen)});
  }
  const auto is_frozen = [](const ParameterGroup& group) { return group.frozen; };
  if (!groups.empty() && std::all_of(groups.begin(), groups.end(), is_frozen)) {
    throw ConfigError({.field = "frozen",
                       .entry = rules.frozen,
                       .problem = "matches every parameter, so that nothing would be trained"});
  }
  return groups;
}

}  // namespace llampi::optim
