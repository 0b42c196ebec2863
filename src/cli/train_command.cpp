// SPDX-License-Identifier: Apache-2.0
// llampi train
#include <algorithm>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/keys.hpp"
#include "cli/launch.hpp"
#include "cli/options.hpp"
#include "cli/ranks.hpp"
#include "cli/stop_signals.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/train/train.hpp"

namespace llampi::cli {
namespace {

constexpr const char* kPrintConfig = "--print-config";

/// What stands beside the keys.
struct TrainRequest {
  bool print_config = false;
};

std::vector<Option> options_of(TrainRequest& r) {
  return {{"print-config", &r.print_config, "print the resolved configuration and train nothing", {}, true}};
}

constexpr const char* kTrainUsage =
    R"(Usage: [mpirun -n RANKS] llampi train [--config FILE] [--section.key=value ...] [--print-config]

Trains a model, or continues a run. Required are data.train, model.config (or a folder as model.weights), and
train.steps or train.epochs. For example:

  mpirun -n 8 llampi train --config run.ini --run.dir=runs/a --train.steps=1000

The command line overrides the environment of rank 0 (LLAMPI_TRAIN_STEPS for train.steps), which
overrides the configuration file; other keys have their defaults. If an option is given twice, the
last one is used. Whole numbers can be written as 1e9. The resolved
configuration is written to config.ini in run.dir; --config accepts that file.

To stop a run early, create a file named stop in run.dir, or send SIGUSR1 to all ranks (mpirun forwards it).
The run saves a checkpoint and exits with status 75; the same command continues it. It stops after at most
two more steps. A step that takes half a second or more also stops before its next micro-batch, unless it is
replayed as a CUDA graph, and resuming repeats it. SIGTERM and SIGINT also stop it, but after these (and
Ctrl-C) Open MPI's mpirun kills the ranks about two seconds later, even if the checkpoint is not complete.

Exit status: 0 success, 1 internal or system error (also: a rank is lost, the loss is not finite, replicas
differ), 2 invalid input (see the line that starts with "llampi:"), 75 stopped early with a checkpoint.
)";

/// What would be run, for people and job scripts. Needs no MPI.
int print_config(Arguments arguments) {
  std::erase(arguments, kPrintConfig);
  std::set<std::string> given;
  const train::Config config =
      resolve_config(arguments, console_log(true, stderr), Purpose::train, {}, &given);
  print(to_ini(config, &given));
  return kDone;
}

}  // namespace

Manual train_manual() { return with_keys(manual_of<TrainRequest>(kTrainUsage)); }

int train_command(const Arguments& arguments) {
  if (std::find(arguments.begin(), arguments.end(), kPrintConfig) != arguments.end())
    return print_config(arguments);
  const StopSignals stop_signals;
  return run_on_ranks([&](comm::World& world) {
    const Log log = console_log(world.rank() == 0, stdout);
    const Launch launch = inspect_launch(world.size(), environment_variable);
    if (launch.verdict == Launch::Verdict::suspicious) log.warning("{}", launch.sentence);
    const train::Config config = resolve_on_rank_0(world, arguments, log);
    const auto complain = [](const std::string& summary) { print_summary("watchdog: " + summary); };
    const train::ConfigTexts texts{to_ini(config), to_ini(train::Config()), key_of};
    if (train::train(world, config, texts, log, complain) == train::Outcome::done) return kDone;
    if (environment_variable(kOpenMpiRanks).empty()) return kStopped;
    if (stop_signals.were_to_end()) {
      log.info(
          "the run has stopped, not failed: after Ctrl-C or SIGTERM, mpirun's own exit status may be 1 instead of "
          "{}; SIGUSR1 keeps {}",
          kStopped, kStopped);
    } else {
      log.info(
          "exit status {} means stopped, not failed: ignore what mpirun prints below, or omit it with mpirun -q",
          kStopped);
    }
    return kStopped;
  });
}

}  // namespace llampi::cli
