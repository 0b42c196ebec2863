// SPDX-License-Identifier: Apache-2.0
// How the process was started, against what MPI makes of it.
#pragma once

#include <functional>
#include <string>

namespace llampi::cli {

/// A job that somebody started with several processes and in which MPI sees one: each of them would be a job
/// of its own, and all would write the same files.
struct Launch {
  enum class Verdict : unsigned char {
    right,
    suspicious,  ///< the scheduler gave several tasks, and one process was started: perhaps meant
    wrong,       ///< several processes were started, which do not find each other
  };
  Verdict verdict = Verdict::right;
  std::string sentence;  ///< what is wrong and what to do; empty if nothing is
  bool speaks = true;    ///< the first of the processes, as far as the environment tells
};

/// @param ranks of MPI's world
/// @param variable value of a variable of the environment; empty if it is not set
Launch inspect_launch(int ranks, const std::function<std::string(const char*)>& variable);

/// Whether this process does the work of a command that uses one process. Of several that a launcher started
/// it is the first, which says so in a warning on standard error; the others have nothing to do.
bool works_alone(const std::string& command, const std::function<std::string(const char*)>& variable);

/// Set where Open MPI's mpirun has started the process.
inline constexpr const char* kOpenMpiRanks = "OMPI_COMM_WORLD_SIZE";

/// The variable of this process's environment; empty if it is not set.
std::string environment_variable(const char* name);

}  // namespace llampi::cli
