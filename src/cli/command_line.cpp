// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.hpp"

#include <algorithm>
#include <boost/program_options.hpp>
#include <sstream>
#include <utility>

#include "cli/suggestion.hpp"
#include "llampi/core/error.hpp"

namespace llampi::cli {
namespace {

namespace po = boost::program_options;

constexpr unsigned kHelpColumns = 110;
constexpr unsigned kHelpTextColumns = 64;

void add(po::options_description& description, const Option& option) {
  if (option.flag) {
    description.add_options()(option.key.c_str(), option.help.c_str());
    return;
  }
  auto* value = po::value<std::string>()->value_name(value_name(option));
  if (const auto text = value_text(option); !text.empty()) value->default_value(text);
  description.add_options()(option.key.c_str(), value, option.help.c_str());
}

/// Boost takes `--key=` for a mistake; here it is the empty text.
Arguments split_empty_values(const Arguments& arguments) {
  Arguments split;
  for (const auto& argument : arguments) {
    if (argument.starts_with("--") && argument.find('=') == argument.size() - 1) {
      split.push_back(argument.substr(0, argument.size() - 1));
      split.emplace_back();
    } else {
      split.push_back(argument);
    }
  }
  return split;
}

std::vector<po::option> run_parser(const Arguments& arguments, const std::vector<Option>& options) {
  po::options_description description;
  for (const auto& option : options) add(description, option);
  namespace style = po::command_line_style;
  try {
    return po::command_line_parser(split_empty_values(arguments))
        .options(description)
        .style(style::allow_long | style::long_allow_adjacent | style::long_allow_next)
        .allow_unregistered()
        .run()
        .options;
  } catch (const po::invalid_command_line_syntax& error) {
    const bool extra = error.kind() == po::invalid_command_line_syntax::extra_parameter;
    throw_user_error("the option {} {}", error.get_option_name(), extra ? "takes no value" : "needs a value");
  } catch (const po::error& error) {
    throw_user_error("the command line cannot be understood: {}", error.what());
  }
}

/// The last one counts, so that a script can have options of its own in front of its user's.
void add_or_replace(CommandLine& line, Setting setting) {
  const auto earlier = std::find_if(line.settings.begin(), line.settings.end(),
                                    [&](const Setting& other) { return other.key == setting.key; });
  if (earlier == line.settings.end()) {
    line.settings.push_back(std::move(setting));
    return;
  }
  if (earlier->value != setting.value) {
    line.notes.push_back(fmt::format("--{} is given twice on the command line: {} counts, not {}",
                                     setting.key, setting.value, earlier->value));
  }
  *earlier = std::move(setting);
}

}  // namespace

CommandLine parse_command_line(const Arguments& arguments, const std::vector<Option>& options) {
  CommandLine line;
  for (const auto& given : run_parser(arguments, options)) {
    if (given.position_key != -1) {
      line.positional.push_back(given.value.front());
      continue;
    }
    if (find_option(options, given.string_key) == nullptr) {
      throw_user_error("unknown option --{} on the command line{}", given.string_key,
                       did_you_mean(suggestions(given.string_key, keys_of(options)), "--", "--help"));
    }
    const std::string value = given.value.empty() ? "" : given.value.front();
    if (given.original_tokens.size() > 1 &&
        value.starts_with("--")) {  // Boost takes the next option for the value
      throw_user_error("the option --{} needs a value", given.string_key);
    }
    add_or_replace(line, {given.string_key, value, kCommandLine});
  }
  return line;
}

namespace {

/// ", for example --weights=llama3": the first option of a file or folder that is not given.
std::string example_with(const std::string& argument, const std::vector<Option>& options,
                         const CommandLine& line) {
  const auto is_next = [&](const Option& one) {
    const std::string& name = one.values.name;
    return (name.starts_with("FILE") || name.starts_with("FOLDER")) && !line.has(one.key);
  };
  const auto option = std::ranges::find_if(options, is_next);
  if (option == options.end() || argument.starts_with("-") || argument.find('=') != std::string::npos)
    return "";
  return fmt::format(", for example --{}={}", option->key, argument);
}

}  // namespace

CommandLine assign_command_line(const Arguments& arguments, const std::vector<Option>& options,
                                std::size_t max_positional, const Log& log) {
  CommandLine line = parse_command_line(arguments, options);
  for (const auto& note : line.notes) log.info("{}", note);
  if (line.positional.size() > max_positional) {
    const std::string& argument = line.positional[max_positional];
    throw_user_error(
        "unexpected argument \"{}\"{}; options are written --name=value{}", argument,
        max_positional > 0
            ? fmt::format(" after \"{}\": at most {} can be given", line.positional[max_positional - 1],
                          max_positional == 1 ? "one" : fmt::format("{}", max_positional))
            : "",
        max_positional == 0 ? example_with(argument, options, line) : "");
  }
  for (const auto& setting : line.settings) assign(*find_option(options, setting.key), setting);
  return line;
}

bool asks_for_help(const Arguments& arguments) {
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const auto& argument) { return argument == "--help" || argument == "-h"; });
}

std::string options_help(const std::vector<Option>& options) {
  po::options_description all(kHelpColumns, kHelpTextColumns);
  for (auto option = options.begin(); option != options.end();) {
    const std::string section = section_of(option->key);
    po::options_description group(section.empty() ? "options" : section, kHelpColumns, kHelpTextColumns);
    for (; option != options.end() && section_of(option->key) == section; ++option) add(group, *option);
    all.add(group);
  }
  std::ostringstream text;
  text << all;
  return text.str();
}

void require_option(bool given, const std::string& command, const std::string& option) {
  // "tokenize --format chat" is a command with an option that makes this one necessary.
  if (!given)
    throw_user_error("{} needs --{}; see llampi {} --help", command, option,
                     command.substr(0, command.find(' ')));
}

}  // namespace llampi::cli
