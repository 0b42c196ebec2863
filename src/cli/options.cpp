// SPDX-License-Identifier: Apache-2.0
#include "cli/options.hpp"

#include <algorithm>
#include <boost/algorithm/string/predicate.hpp>
#include <boost/program_options.hpp>
#include <cctype>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string_view>

#include "cli/option_table.hpp"
#include "cli/suggestion.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/split.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/train/config_rules.hpp"
#include "llampi/train/renamed_values.hpp"

namespace llampi::cli {
namespace {

namespace po = boost::program_options;

constexpr const char* kPrefix = "LLAMPI_";
constexpr const char* kPluginFolder = "LLAMPI_PLUGIN_DIR";  ///< no key: device/gpu_library.cpp reads it

/// LLAMPI_TRAIN_STEPS of train.steps.
std::string variable_of(const std::string& key) {
  std::string variable = kPrefix;
  for (const char c : key) {
    variable += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return variable;
}

/// What modules and package managers set for a program that they provide, such as LLAMPI_ROOT; no key of a section has such a name.
bool is_of_site(const std::string& variable) {
  constexpr const char* kNames[] = {"ROOT", "HOME", "DIR",     "BASE",    "PREFIX", "PATH",
                                    "BIN",  "LIB",  "INCLUDE", "VERSION", "INC"};
  const std::string name = variable.substr(std::strlen(kPrefix));
  return std::ranges::find(kNames, name) != std::end(kNames);
}

/// What may be meant by LLAMPI_TRAIN_MICROBATCH, or LLAMPI_LR without the section.
std::vector<std::string> suggested_variables(const std::string& variable, const std::vector<Option>& table) {
  std::string word = variable.substr(std::strlen(kPrefix));
  const auto section = std::ranges::find_if(table, [&](const Option& option) {
    return boost::istarts_with(word, std::string(section_of(option.key)) + "_");
  });
  if (section != table.end()) word[std::string(section_of(section->key)).size()] = '.';
  auto suggested = suggestions(word, keys_of(table));
  for (auto& key : suggested) key = variable_of(key);
  return suggested;
}

std::vector<Setting> environment_settings(const std::vector<Option>& table) {
  std::map<std::string, std::string> keys;
  for (const auto& option : table) keys[variable_of(option.key)] = option.key;
  const auto key_of = [&](const std::string& variable) -> std::string {
    if (!variable.starts_with(kPrefix) || variable == kPluginFolder || is_of_site(variable)) return {};
    const auto found = keys.find(variable);
    if (found != keys.end()) return found->second;
    throw_user_error("unknown variable {} in the environment: unset it{}", variable,
                     did_you_mean(suggested_variables(variable, table), "", "llampi train --help"));
  };
  std::vector<Setting> settings;
  const boost::function1<std::string, std::string> mapper = key_of;
  for (const auto& given : po::parse_environment(po::options_description(), mapper).options) {
    settings.push_back({given.string_key, given.value.front(), variable_of(given.string_key)});
  }
  return settings;
}

/// For messages: what somebody else's file may hold, on one short line.
std::string printable(std::string text) {
  constexpr std::size_t kLongest = 60;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  for (char& c : text) {
    if (!std::isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return text;
}

/// Without comments, and without spaces around them, as Boost reads them. It keeps no numbers.
std::vector<std::string> code_lines(const std::string& text) {
  auto lines = lines_of(text);
  for (auto& line : lines) line = std::string(trimmed(std::string_view(line).substr(0, line.find('#'))));
  return lines;
}

/// The first line that sets each key, from 1.
std::map<std::string, int> lines_of_keys(const std::string& text) {
  std::map<std::string, int> lines;
  std::string prefix;
  int number = 0;
  for (const std::string& line : code_lines(text)) {
    ++number;
    const auto equals = line.find('=');
    if (line.starts_with('[') && line.ends_with(']')) {
      prefix = line.substr(1, line.size() - 2);
      if (!prefix.ends_with('.')) prefix += '.';
    } else if (equals != std::string::npos) {
      lines.emplace(prefix + std::string(trimmed(std::string_view(line).substr(0, equals))), number);
    }
  }
  return lines;
}

/// "FILE, line N", of the first such line.
std::string place_of_line(const std::string& text, const std::string& wanted, const std::string& name) {
  const auto lines = code_lines(text);
  const auto line = std::ranges::find(lines, wanted);
  return line == lines.end() ? name : fmt::format("{}, line {}", name, line - lines.begin() + 1);
}

bool is_quote(char c) { return c == '"' || c == '\''; }

/// Without a pair of quotation marks around all of it, which other formats need: here they mean nothing.
std::string unquoted(const std::string& value) {
  const bool quoted = value.size() > 1 && is_quote(value.front()) && value.front() == value.back();
  return quoted ? value.substr(1, value.size() - 2) : value;
}

std::vector<Setting> ini_settings(const std::string& text, const std::string& name,
                                  const std::vector<Option>& table) {
  std::vector<Setting> settings;
  std::set<std::string> seen;
  const auto lines = lines_of_keys(text);
  std::istringstream stream(text);
  try {
    for (const auto& given : po::parse_config_file(stream, po::options_description(), true).options) {
      const std::string& key = given.string_key;
      const auto line = lines.find(key);
      const std::string place = line == lines.end() ? name : fmt::format("{}, line {}", name, line->second);
      if (find_option(table, key) == nullptr) {
        throw_user_error("unknown key {} in {}{}", printable(key), place,
                         did_you_mean(suggestions(key, keys_of(table)), "", "llampi train --help"));
      }
      if (!seen.insert(key).second)
        throw_user_error("{} is given twice, first in {}; give it once", key, place);
      settings.push_back({key, unquoted(given.value.front()), place});
    }
  } catch (const po::invalid_config_file_syntax& error) {
    throw_user_error("{}: \"{}\" is neither [section] nor key = value",
                     place_of_line(text, error.tokens(), name), printable(error.tokens()));
  }
  return settings;
}

std::string read_text(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) {
    throw_user_error("the configuration file {} is a folder; give the file in it", path.string());
  }
  std::string text;
  try {
    text = io::read_whole(path);
  } catch (const UserError& error) {
    throw_user_error("the configuration file {}", error.what());
  }
  return std::string(without_byte_order_mark(text));
}

/// A text that the resolved configuration could not give back.
void refuse_what_ini_cannot_hold(const Setting& setting) {
  const auto& value = setting.value;
  if (value.empty()) return;
  const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  const auto refuse = [&](const char* problem) {
    throw_user_error("{} = {} ({}) cannot be kept in a configuration file: it {}", setting.key,
                     printable(value), setting.where, problem);
  };
  if (is_space(value.front()) || is_space(value.back())) refuse("begins or ends with a space");
  if (value.find_first_of("#\r\n") != std::string::npos) refuse("holds a # or a line end");
  if (is_quote(value.front()) || is_quote(value.back())) refuse("begins or ends with a quotation mark");
}

/// The folder of the weights, if it has a config.json. A run that has begun goes on without the folder.
void default_model_config(train::Config& c) {
  if (!c.model.config.empty() || !c.model.weights) return;
  std::error_code ignored;
  const std::filesystem::path weights = *c.model.weights;
  if (std::filesystem::exists(weights / "config.json", ignored) || !std::filesystem::exists(weights, ignored))
    c.model.config = *c.model.weights;
}

/// What is required, and what concerns more than one key; none of it needs a file.
void check(const train::Config& c, Purpose purpose) {
  if (c.model.config.empty()) {
    throw_user_error(
        "model.config is not given; name a Hugging Face config.json or the folder that holds it");
  }
  if (c.data.train.empty() && purpose == Purpose::train) {
    throw_user_error("data.train is not given; name a token file, which llampi tokenize writes");
  }
  if (c.train.steps == 0 && c.train.epochs == 0 && purpose == Purpose::train) {
    throw_user_error(
        "neither train.steps nor train.epochs is given; say how long the run is with one of them");
  }
  train::check_run(c);
}

/// The later ones of `sources` win.
train::Config build(const std::vector<std::vector<Setting>>& sources, Purpose purpose = Purpose::train,
                    const Log& log = {}) {
  std::map<std::string, Setting> winners;
  for (const auto& source : sources) {
    for (const auto& setting : source) winners[setting.key] = setting;
  }
  train::Config config;
  for (const auto& option : option_table(config)) {
    const auto winner = winners.find(option.key);
    if (winner == winners.end()) continue;
    Setting setting = winner->second;
    refuse_what_ini_cannot_hold(setting);
    setting.value = train::current_value(setting.key, setting.value);
    if (setting.value != winner->second.value) {
      log.warning("{} = {} ({}) is now called {}; the next version will refuse the old name", setting.key,
                  winner->second.value, setting.where, setting.value);
    }
    assign(option, setting);
  }
  default_model_config(config);
  check(config, purpose);
  return config;
}

Option config_option(std::string& file) {
  return {"config", &file, "configuration file: [section], key = value, # comments", {.name = "FILE"}};
}

}  // namespace

train::Config resolve_config(const Arguments& arguments, const Log& log, Purpose purpose,
                             const std::vector<Option>& more, std::set<std::string>* given,
                             std::set<std::string>* above_file) {
  train::Config defaults;
  const auto table = option_table(defaults);
  std::string file;
  auto accepted = table;
  accepted.push_back(config_option(file));
  accepted.insert(accepted.end(), more.begin(), more.end());

  CommandLine line = parse_command_line(arguments, accepted);
  for (const auto& note : line.notes) log.info("{}", note);
  if (!line.positional.empty()) {
    const std::string& argument = line.positional[0];
    std::error_code ignored;
    const bool is_file = std::filesystem::is_regular_file(argument, ignored);
    throw_user_error("unexpected argument \"{}\"; {}", argument,
                     is_file ? fmt::format("a configuration file is given with --config {}", argument)
                             : "options are written --section.key=value");
  }
  bool has_file = false;
  std::erase_if(line.settings, [&](const Setting& setting) {
    if (find_option(table, setting.key) != nullptr) return false;
    assign(*find_option(accepted, setting.key), setting);
    has_file = has_file || setting.key == "config";
    return true;
  });
  std::vector<Setting> from_file;
  if (has_file) from_file = ini_settings(read_text(file), file, table);
  const std::vector<std::vector<Setting>> sources = {from_file, environment_settings(table), line.settings};
  for (const auto& source : sources) {
    for (const auto& setting : source) {
      if (given != nullptr) given->insert(setting.key);
      if (above_file != nullptr && &source != &sources.front()) above_file->insert(setting.key);
    }
  }
  return build(sources, purpose, log);
}

void choose_global_batch(train::Config& config, int ranks, std::set<std::string>& given, const Log& log) {
  const std::int64_t micro_batch = config.train.micro_batch.value_or(1), per_pass = ranks * micro_batch;
  auto& batch = config.train.global_batch;
  if (batch % per_pass == 0 || !given.insert("train.global_batch").second) return;
  batch += per_pass - batch % per_pass;
  log.info("train.global_batch is not given: {} is taken, for {} x train.micro_batch = {}", batch,
           count(ranks, "rank"), micro_batch);
}

std::string to_ini(const train::Config& config, const std::set<std::string>* given) {
  train::Config copy = config;
  std::string text, section;
  for (const auto& option : option_table(copy)) {
    const auto dot = option.key.find('.');
    if (option.key.substr(0, dot) != section) {
      text += section.empty() ? "" : "\n";
      section = option.key.substr(0, dot);
      text += fmt::format("[{}]\n", section);
    }
    const std::string value = value_text(option);
    const bool as_comment = given != nullptr && given->count(option.key) == 0;
    text += fmt::format("{}{} ={}{}\n", as_comment ? "# " : "", option.key.substr(dot + 1),
                        value.empty() ? "" : " ", value);
  }
  return text;
}

train::Config parse_ini(const std::string& text, const std::string& name, Purpose purpose) {
  train::Config defaults;
  return build({ini_settings(text, name, option_table(defaults))}, purpose);
}

Manual with_keys(Manual manual) {
  struct Targets {
    train::Config config;
    std::string file;
    std::shared_ptr<const void> others;
  };
  const auto targets = std::make_shared<Targets>();
  manual.options.push_back(config_option(targets->file));
  for (auto& option : option_table(targets->config)) manual.options.push_back(std::move(option));
  targets->others = std::move(manual.targets);
  manual.targets = targets;
  return manual;
}

}  // namespace llampi::cli
