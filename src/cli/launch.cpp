// SPDX-License-Identifier: Apache-2.0
#include "cli/launch.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "cli/console.hpp"
#include "llampi/core/text.hpp"

namespace llampi::cli {
namespace {

/// What a launcher tells each process that it starts.
struct Launcher {
  const char* name;
  const char* size;  ///< variable: processes
  const char* rank;  ///< variable: number of this one
};
constexpr Launcher kOpenMpi{"mpirun", kOpenMpiRanks, "OMPI_COMM_WORLD_RANK"};
constexpr Launcher kSlurmStep{"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"};
constexpr Launcher kPmi{"the launcher", "PMI_SIZE", "PMI_RANK"};  // mpiexec of MPICH and Intel MPI, aprun

/// 0 if the text is no number.
int number(const std::string& text) { return parse_number<int>(text).value_or(0); }

}  // namespace

Launch inspect_launch(int ranks, const std::function<std::string(const char*)>& variable) {
  if (ranks > 1 || number(variable(kOpenMpi.size)) == 1) return {};
  for (const auto& launcher : {kOpenMpi, kPmi, kSlurmStep}) {
    // A batch script has the variables of a step that it is not.
    const bool step = launcher.size == kSlurmStep.size;
    if (step && variable("SLURM_STEP_ID").empty()) continue;
    const int started = number(variable(launcher.size));
    if (started < 2) continue;
    return {Launch::Verdict::wrong,
            fmt::format(
                "{} started {} processes, but each has an MPI_COMM_WORLD of size 1: launcher and MPI do not "
                "match; start with {}",
                launcher.name, started,
                step ? "srun --mpi=pmix, or with mpirun"
                     : "the mpirun of the Open MPI that llampi was built with (llampi --version)"),
            number(variable(launcher.rank)) == 0};
  }
  const int tasks = number(variable("SLURM_NTASKS"));
  if (tasks < 2) return {};  // srun -n 1 says 1
  return {
      Launch::Verdict::suspicious,
      fmt::format("the Slurm job has {} tasks, but this is a run of one process; to use them all, start it "
                  "with srun --mpi=pmix or mpirun",
                  tasks)};
}

bool works_alone(const std::string& command, const std::function<std::string(const char*)>& variable) {
  // mpirun first: what it starts may have inherited Slurm's variables of mpirun's own daemons.
  for (const auto& launcher : {kOpenMpi, kPmi, kSlurmStep}) {
    if (launcher.size == kSlurmStep.size && variable("SLURM_STEP_ID").empty()) continue;
    const int started = number(variable(launcher.size));
    if (started == 0) continue;
    const int rank = number(variable(launcher.rank));
    if (started > 1 && rank == 0) {
      console_log(true, stderr)
          .warning(
              "{} uses one process: rank 0 of {} does the work, the other ranks do nothing; in scripts where each "
              "rank works on a part of its own, unset {}",
              command, started, launcher.size);
    }
    return rank == 0;
  }
  return true;
}

std::string environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace llampi::cli
