// SPDX-License-Identifier: Apache-2.0
// Marks what a GPU's kernels call, too: the same source, so that it gives the same bits there.
#pragma once

#ifdef __CUDACC__
#define LLAMPI_HOST_DEVICE __host__ __device__
#else
#define LLAMPI_HOST_DEVICE
#endif
