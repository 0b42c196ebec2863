// SPDX-License-Identifier: Apache-2.0
// Finds the command, and turns what it throws into an exit status.
#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/keys.hpp"
#include "cli/suggestion.hpp"
#include "llampi/core/error.hpp"

namespace llampi::cli {
namespace {

std::string help_text() {
  std::string text =
      "Usage: llampi <command> [options]\n\n"
      "Trains Llama, Mistral and Qwen models with fully sharded data parallelism over MPI.\n\n"
      "Commands:\n";
  for (const auto& command : commands()) text += fmt::format("  {:<10} {}\n", command.name, command.summary);
  return text +
         "\n"
         "llampi <command> --help   options of a command\n"
         "llampi --version          versions of the program and of its libraries\n";
}

const Command& find_command(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& command : commands()) {
    if (command.name == name) return command;
    names.push_back(command.name);
  }
  throw_user_error("unknown command \"{}\"{}", name,
                   did_you_mean(suggestions(name, names), "", "llampi --help"));
}

int dispatch(const Arguments& arguments) {
  if (arguments.empty()) {
    print(help_text());
    throw_user_error("no command given; llampi train --help shows how to start");
  }
  const std::string& first = arguments[0];
  if (first == "--help" || first == "-h" || first == "help") {
    const bool of_command = first == "help" && arguments.size() > 1;
    print(of_command ? help_text(find_command(arguments[1]).manual()) : help_text());
    return kDone;
  }
  if (first == "--version") {
    print(version_text());
    return kDone;
  }
  const Command& command = find_command(first);
  const Arguments rest(arguments.begin() + 1, arguments.end());
  if (!asks_for_help(rest)) return command.run(rest);
  print(help_text(command.manual()));
  return kDone;
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {"train", "train a model, or continue a run", train_command, train_manual},
      {"tokenize", "make a token file from texts", tokenize_command, tokenize_manual},
      {"generate", "continue a text", generate_command, generate_manual},
      {"evaluate", "compute the loss of a model, or its accuracy on questions", evaluate_command,
       evaluate_manual},
      {"inspect", "describe a checkpoint, a token file or a Hugging Face folder", inspect_command,
       inspect_manual},
      {"import", "convert a Hugging Face folder to a checkpoint", import_command, import_manual},
      {"export", "convert a checkpoint to a Hugging Face folder", export_command, export_manual},
      {"plan", "predict the memory and the speed of a configuration, without running it", plan_command,
       plan_manual},
      {"top", "watch runs in the terminal", top_command, top_manual},
      {"report", "show a run, or compare several, as one HTML page", report_command, report_manual},
      {"bench", "measure how fast this machine trains", bench_command, bench_manual},
      {"check", "check the arithmetic of this machine and, with a configuration, what a long run needs",
       check_command, check_manual},
      {"completion", "print a completion script for bash, zsh or fish", completion_command,
       completion_manual},
      {"man", "print the manual page", man_command, man_manual},
  };
  return all;
}

int run_program(const Arguments& arguments) {
  try {
    return dispatch(arguments);
  } catch (const UserError& error) {
    print_error(sentence_of(error));
    return kWrongInput;
  } catch (const std::exception& error) {
    print_error(sentence_of(error));
    return kFailed;
  }
}

}  // namespace llampi::cli
