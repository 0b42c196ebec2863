// SPDX-License-Identifier: Apache-2.0
// Settings of Open MPI that a started rank can still make for itself.
#pragma once

namespace llampi::comm {

/// To be called before MPI_Init. What the user has set in the environment or with `mpirun --mca` stays.
void set_mpi_defaults();

/// While one lives, the sleeps of this thread (and, later, of threads that it starts now) may end up to 2 ms late. For MPI_Init and
/// MPI_Finalize: Open MPI 4 polls there every 100 us while it waits for the other ranks, and hundreds of ranks that share a core leave
/// it no time for the one that all wait for.
class LateWakeups {
 public:
  LateWakeups();
  ~LateWakeups();
  LateWakeups(const LateWakeups&) = delete;
  LateWakeups& operator=(const LateWakeups&) = delete;
};

}  // namespace llampi::comm
