// SPDX-License-Identifier: Apache-2.0
#include "cli/completion.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "cli/console.hpp"
#include "llampi/core/error.hpp"

namespace llampi::cli {
namespace {

constexpr const char* kCompletionUsage =
    R"(Usage: llampi completion bash|zsh|fish

Prints a script that completes commands, options, their values and file names. For this shell:

  source <(llampi completion bash)                 bash
  source <(llampi completion zsh)                  zsh, after compinit
  llampi completion fish | source                  fish

To keep it, write it to ~/.local/share/bash-completion/completions/llampi, to _llampi in a folder of
zsh's fpath, or to ~/.config/fish/completions/llampi.fish. make install to /usr or /usr/local
has done so for all users.
)";

const std::vector<std::pair<std::string, std::string (*)(const std::vector<Command>&)>>& shells() {
  static const std::vector<std::pair<std::string, std::string (*)(const std::vector<Command>&)>> kShells = {
      {"bash", bash_completion}, {"zsh", zsh_completion}, {"fish", fish_completion}};
  return kShells;
}

struct Described {
  std::string name, summary;
  Manual manual;
};

std::vector<Described> described(const std::vector<Command>& commands) {
  std::vector<Described> all;
  for (const auto& command : commands) all.push_back({command.name, command.summary, command.manual()});
  return all;
}

std::string names_of(const std::vector<Described>& all) {
  std::vector<std::string> names;
  for (const auto& command : all) names.push_back(command.name);
  return fmt::format("{}", fmt::join(names, " "));
}

/// Each of `special` after `escape`.
std::string escaped(const std::string& text, const std::string& special, const std::string& escape) {
  std::string result;
  for (const char c : text) {
    if (special.find(c) != std::string::npos) result += escape;
    result += c;
  }
  return result;
}

/// In single quotes, for a POSIX shell.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

/// "--key=", or "--flag".
std::string spelling(const Option& option) { return "--" + option.key + (option.flag ? "" : "="); }

constexpr const char* kBashFunction = R"BASH(
_llampi() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
    local key='' prefix='' options='' values='' files=''
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "$(_llampi_commands)" -- "$current")
        return
    fi
    _llampi_words "$command" ''
    # The = of --key=value is a word of its own where COMP_WORDBREAKS has it.
    if [[ $current == = ]]; then
        key=$previous current=''
    elif [[ $previous == = ]]; then
        key=${COMP_WORDS[COMP_CWORD - 2]}
    elif [[ $current == --*=* ]]; then
        key=${current%%=*} prefix=$key= current=${current#*=}
    elif [[ " $options " == *" $previous= "* ]]; then
        key=$previous
    elif [[ $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
        if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace 2>/dev/null; fi
        return
    fi
    _llampi_words "$command" "$key"
    mapfile -t COMPREPLY < <(
        compgen -P "$prefix" -W "$values" -- "$current"
        if [[ -n $files ]]; then compgen -P "$prefix" -f -- "$current"; fi
    )
    if [[ -n $files ]]; then compopt -o filenames 2>/dev/null; fi
    return 0
}
complete -F _llampi llampi
)BASH";

}  // namespace

std::string bash_completion(const std::vector<Command>& commands) {
  const auto all = described(commands);
  std::string text = fmt::format(
      "# shellcheck shell=bash\n"
      "# Completion of llampi in bash, as `llampi completion bash` prints it.\n\n"
      "_llampi_commands() {{ echo '{}'; }}\n\n"
      "# The words of a command: its options and, of one of them or of its arguments, values and whether files may be given.\n"
      "# shellcheck disable=SC2034\n"
      "_llampi_words() {{\n"
      "    values='' files=''\n"
      "    case $1 in\n",
      names_of(all));
  for (const auto& [name, summary, manual] : all) {
    std::vector<std::string> options = {"--help"};
    std::string values;
    for (const auto& option : manual.options) {
      options.push_back(spelling(option));
      const ValueHint hint = hint_of(option);
      if (hint.words.empty() && !hint.files) continue;
      values += fmt::format("                --{}) values='{}'{} ;;\n", option.key,
                            fmt::join(hint.words, " "), hint.files ? " files=yes" : "");
    }
    if (manual.takes_files) values += "                '') files=yes ;;\n";
    if (!manual.words.empty())
      values += fmt::format("                '') values='{}' ;;\n", fmt::join(manual.words, " "));
    text += fmt::format("        {})\n            options='{}'\n", name, fmt::join(options, " "));
    if (!values.empty()) text += "            case $2 in\n" + values + "            esac\n";
    text += "            ;;\n";
  }
  return text + "        *) options='' ;;\n    esac\n}\n" + kBashFunction;
}

std::string zsh_completion(const std::vector<Command>& commands) {
  const auto all = described(commands);
  std::string text =
      "#compdef llampi\n"
      "# Completion of llampi in zsh, as `llampi completion zsh` prints it.\n\n"
      "_llampi() {\n"
      "    local -a commands\n"
      "    if (( CURRENT == 2 )); then\n"
      "        commands=(\n";
  for (const auto& command : all)
    text += fmt::format("            {}\n", quoted(command.name + ":" + escaped(command.summary, ":", "\\")));
  text +=
      "        )\n"
      "        _describe -t commands command commands\n"
      "        return\n"
      "    fi\n"
      "    local command=$words[2]\n"
      "    shift words\n"
      "    (( CURRENT-- ))\n"
      "    case $command in\n";
  for (const auto& [name, summary, manual] : all) {
    text += fmt::format("        {})\n            _arguments -S", name);
    for (const auto& option : manual.options) {
      const ValueHint hint = hint_of(option);
      std::string action;
      if (hint.files)
        action = hint.words.empty()
                     ? "_files"
                     : fmt::format("_alternative \"words\\:word\\:({})\" \"files\\:file\\:_files\"",
                                   fmt::join(hint.words, " "));
      else if (!hint.words.empty())
        action = fmt::format("({})", fmt::join(hint.words, " "));
      else
        action = " ";
      const std::string help = escaped(option.help, "\\[]:", "\\");
      const std::string value =
          option.flag ? "" : fmt::format(":{}:{}", escaped(value_name(option), "\\[]:", "\\"), action);
      text += " \\\n                " +
              quoted(fmt::format("--{}{}[{}]{}", option.key, option.flag ? "" : "=", help, value));
    }
    text += " \\\n                '--help[options of the command]'";
    if (manual.takes_files) text += " \\\n                '*:file:_files'";
    if (!manual.words.empty())
      text += fmt::format(" \\\n                '1:argument:({})'", fmt::join(manual.words, " "));
    text += "\n            ;;\n";
  }
  return text +
         "    esac\n"
         "}\n\n"
         "if [[ $funcstack[1] == _llampi ]]; then\n"
         "    _llampi \"$@\"\n"
         "else\n"
         "    compdef _llampi llampi\n"
         "fi\n";
}

std::string fish_completion(const std::vector<Command>& commands) {
  const auto all = described(commands);
  const auto fish_quoted = [](const std::string& text) { return "'" + escaped(text, "\\'", "\\") + "'"; };
  std::string text =
      "# Completion of llampi in fish, as `llampi completion fish` prints it.\n\n"
      "complete -c llampi -f\n";
  for (const auto& command : all) {
    text += fmt::format("complete -c llampi -n __fish_use_subcommand -a {} -d {}\n", command.name,
                        fish_quoted(command.summary));
  }
  for (const auto& [name, summary, manual] : all) {
    text += fmt::format("\nset -l {0} '__fish_seen_subcommand_from {0}'\n", name);
    for (const auto& option : manual.options) {
      const ValueHint hint = hint_of(option);
      text +=
          fmt::format("complete -c llampi -n ${} -l {} -d {}{}", name, option.key, fish_quoted(option.help),
                      option.flag  ? ""
                      : hint.files ? " -r -F"
                                   : " -x");
      if (!hint.words.empty()) text += fmt::format(" -a '{}'", fmt::join(hint.words, " "));
      text += "\n";
    }
    text += fmt::format("complete -c llampi -n ${} -l help -d 'options of the command'\n", name);
    if (manual.takes_files) text += fmt::format("complete -c llampi -n ${} -F\n", name);
    if (!manual.words.empty())
      text += fmt::format("complete -c llampi -n ${} -a '{}'\n", name, fmt::join(manual.words, " "));
  }
  return text;
}

Manual completion_manual() {
  Manual manual{.usage = kCompletionUsage};
  for (const auto& [shell, write] : shells()) manual.words.push_back(shell);
  return manual;
}

int completion_command(const Arguments& arguments) {
  const auto given = assign_command_line(arguments, {}, 1, console_log(true, stderr)).positional;
  const auto found = std::find_if(shells().begin(), shells().end(), [&](const auto& shell) {
    return !given.empty() && shell.first == given[0];
  });
  if (found == shells().end())
    throw_user_error("completion needs the name of a shell: llampi completion bash, zsh or fish");
  print(found->second(commands()));
  return kDone;
}

}  // namespace llampi::cli
