#include "cli/commands.hpp"
#include "device/cpu/environment.hpp"

int main(int argc, char** argv) {
  llampi::prepare_environment(argv);
  return llampi::cli::run_program({argv + 1, argv + argc});
}
