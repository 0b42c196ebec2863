// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.hpp"
#include "llampi/device/cpu_environment.hpp"

int main(int argc, char** argv) {
  llampi::device::prepare_environment(argv);
  return llampi::cli::run_program({argv + 1, argv + argc});
}
