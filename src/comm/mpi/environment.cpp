// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/environment.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>

namespace llampi::comm {
namespace {

constexpr int kKeep = 0;  // setenv: what is set stays

/// Whether mpirun has started more ranks on this node than there are cores. Not known under other launchers.
bool oversubscribed() {
  const char* ranks = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  return ranks != nullptr && std::strtol(ranks, nullptr, 10) > sysconf(_SC_NPROCESSORS_ONLN);
}

/// By mpirun, or by what speaks PMIx or PMI.
bool started_by_launcher() {
  const auto is_set = [](const char* variable) { return std::getenv(variable) != nullptr; };
  return is_set("OMPI_COMM_WORLD_SIZE") || is_set("PMIX_RANK") || is_set("PMI_RANK");
}

/// Nanoseconds by which the kernel may end a sleep of this thread late; 0 is the thread's default.
void set_timer_slack(unsigned long nanoseconds) { prctl(PR_SET_TIMERSLACK, nanoseconds, 0, 0, 0); }

}  // namespace

LateWakeups::LateWakeups() { set_timer_slack(2'000'000); }
LateWakeups::~LateWakeups() { set_timer_slack(0); }

void set_mpi_defaults() {
  // A rank that waits gives its core to one that works.
  if (oversubscribed()) setenv("OMPI_MCA_mpi_yield_when_idle", "1", kKeep);
  // Started without mpirun, Open MPI would start a daemon for the case that this process spawns others; it
  // never does.
  setenv("OMPI_MCA_ess_singleton_isolated", "1", kKeep);
  // All such processes of a user have the same session directory, and one that ends removes it while another begins, which then
  // fails. One process alone keeps nothing there.
  if (!started_by_launcher()) setenv("OMPI_MCA_orte_create_session_dirs", "0", kKeep);
  // ROMIO writes several times as fast as OMPIO, whose priority is 30, and a full disk is an error instead of
  // a hang. A priority and not a choice (OMPI_MCA_io): Open MPI can be built without ROMIO.
  setenv("OMPI_MCA_io_romio321_priority", "100", kKeep);  // Open MPI 4
  setenv("OMPI_MCA_io_romio341_priority", "100", kKeep);  // Open MPI 5
}

}  // namespace llampi::comm
