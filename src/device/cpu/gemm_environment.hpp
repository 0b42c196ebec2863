// SPDX-License-Identifier: Apache-2.0
// What must be in the environment before the matrix-product library is loaded.
#pragma once

namespace llampi::device {

/// To be called first in main(), before MPI starts. OpenBLAS does not recognise the processor of many virtual
/// machines and then takes kernels that are two to five times slower, unless OPENBLAS_CORETYPE names better
/// ones when the library is loaded: if that happened, sets it and starts the program again in its own place
/// (same process, same arguments). Otherwise, and with any other library, does nothing.
void prepare_gemm_environment(char** argv);

}  // namespace llampi::device
