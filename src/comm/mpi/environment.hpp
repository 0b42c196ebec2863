// SPDX-License-Identifier: Apache-2.0
// Settings of Open MPI that a started rank can still make for itself.
#pragma once

namespace llampi::comm {

/// To be called before MPI_Init. What the user has set in the environment or with `mpirun --mca` stays.
void set_mpi_defaults();

}  // namespace llampi::comm
