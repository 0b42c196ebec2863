// llampi train
#include <cerrno>
#include <csignal>
#include <cstring>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/options.hpp"
#include "cli/ranks.hpp"
#include "llampi/core/error.hpp"
#include "llampi/train/train.hpp"

namespace llampi::cli {
namespace {

constexpr const char* kUsage =
    "Usage: [mpirun -n RANKS] llampi train [--config FILE] [--section.key=value ...]\n\n"
    "Trains, or continues, a run. A key is taken from the command line, else from the environment "
    "(train.steps\n"
    "from LLAMPI_TRAIN_STEPS, as rank 0 sees it), else from the file, else it has its default. The resolved\n"
    "configuration is written to config.ini in run.dir, where --config can take it from. SIGUSR1, SIGTERM "
    "and\n"
    "SIGINT stop the run with a checkpoint and status 75; the same command continues it.\n";

void on_stop_signal(int) { request_stop(); }

/// The first of these signals asks for a clean stop; a second SIGINT ends the program at once.
void install_stop_signals() {
  for (const int number : {SIGUSR1, SIGTERM, SIGINT}) {
    struct sigaction action {};
    action.sa_handler = on_stop_signal;
    action.sa_flags = SA_RESTART;
    if (number == SIGINT) action.sa_flags |= static_cast<int>(SA_RESETHAND);
    if (sigaction(number, &action, nullptr) != 0) throw CallError("sigaction", std::strerror(errno));
  }
}

/// The configuration as rank 0 finds it: a variable of the environment or a file that other nodes do not
/// have, or have otherwise, must not make the ranks differ. Collective.
Config resolve_on_rank_0(World& world, const Arguments& arguments) {
  constexpr char kResolved = 'r';
  constexpr char kWrong = 'w';
  std::string answer;
  if (world.rank() == 0) {
    try {
      answer = kResolved + to_ini(resolve_config(arguments));
    } catch (const UserError& error) {
      answer = kWrong + std::string(error.what());
    }
  }
  answer = world.broadcast(answer, 0);
  if (answer.front() == kWrong) throw UserError(answer.substr(1));
  return parse_ini(answer.substr(1), "the configuration of rank 0");
}

}  // namespace

int train_command(const Arguments& arguments) {
  if (asks_for_help(arguments)) {
    print(kUsage + config_help());
    return kDone;
  }
  install_stop_signals();
  return run_on_ranks([&](World& world) {
    const Config config = resolve_on_rank_0(world, arguments);
    const Log log = console_log(world.rank() == 0, stdout);
    return train(world, config, to_ini(config), log) == Outcome::stopped ? kStopped : kDone;
  });
}

}  // namespace llampi::cli
