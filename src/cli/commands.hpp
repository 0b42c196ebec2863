// SPDX-License-Identifier: Apache-2.0
// The subcommands. Each takes what stands behind its name and returns the exit status; what goes wrong is
// thrown and becomes an exit status in run_program() or run_on_ranks().
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.hpp"
#include "cli/manual.hpp"

namespace llampi::cli {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kWrongInput = 2;
inline constexpr int kStopped = 75;

// With MPI, under mpirun or alone.
int train_command(const Arguments& arguments);
int evaluate_command(const Arguments& arguments);
int generate_command(const Arguments& arguments);
int check_command(const Arguments& arguments);
int bench_command(const Arguments& arguments);
int export_command(const Arguments& arguments);
int import_command(const Arguments& arguments);

// One process, without MPI.
int tokenize_command(const Arguments& arguments);
int inspect_command(const Arguments& arguments);
int plan_command(const Arguments& arguments);
int top_command(const Arguments& arguments);
int report_command(const Arguments& arguments);
int completion_command(const Arguments& arguments);
int man_command(const Arguments& arguments);

Manual train_manual();
Manual evaluate_manual();
Manual generate_manual();
Manual check_manual();
Manual bench_manual();
Manual export_manual();
Manual import_manual();
Manual tokenize_manual();
Manual inspect_manual();
Manual plan_manual();
Manual top_manual();
Manual report_manual();
Manual completion_manual();
Manual man_manual();

struct Command {
  std::string name;
  std::string summary;
  int (*run)(const Arguments&) = nullptr;
  Manual (*manual)() = nullptr;
};
const std::vector<Command>& commands();

/// The versions of the program and of what it is built on. Needs neither MPI's initialisation nor mpirun.
std::string version_text();

/// The whole program but for its environment; `arguments` stand behind the program's name. Returns the exit
/// status.
int run_program(const Arguments& arguments);

}  // namespace llampi::cli
