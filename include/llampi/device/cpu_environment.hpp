// SPDX-License-Identifier: Apache-2.0
// What must be in the environment before the program's libraries are loaded.
#pragma once

namespace llampi::device {

/// To be called first in main(), before MPI starts: prepare_gemm_environment(), and how OpenMP's threads wait
/// for each other. GNU's spin for milliseconds before they sleep, which is time taken from other programs,
/// and, where these use the cores, from the very thread that is waited for. Libraries read the environment
/// when they are loaded, so what is missing is set and the program starts again in its own place (same
/// process, same arguments). A user's own OMP_WAIT_POLICY, GOMP_SPINCOUNT or KMP_BLOCKTIME counts.
void prepare_environment(char** argv);

}  // namespace llampi::device
