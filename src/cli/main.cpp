// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include "cli/commands.hpp"
#include "llampi/core/process.hpp"
#include "llampi/device/cpu_environment.hpp"

int main(int argc, char** argv) {
  llampi::device::prepare_environment(argv);
  llampi::raise_open_files();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows too large is an error with a message, as a full disk is
  return llampi::cli::run_program({argv + 1, argv + argc});
}
