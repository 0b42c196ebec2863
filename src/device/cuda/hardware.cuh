// SPDX-License-Identifier: Apache-2.0
// What only the hardware can do: kernels are started, blocks share memory, warps use tensor cores. By default
// that is a GPU, and nvcc compiles this. LLAMPI_EMULATOR names a header which has the same functions in plain
// C++ (emulator/README.md); this is the one place where it comes in.
#pragma once

#ifdef LLAMPI_EMULATOR

#include LLAMPI_EMULATOR

namespace llampi::device::cuda {
using emulator::cp_async_16, emulator::cp_async_4, emulator::cp_async_commit, emulator::cp_async_wait;
using emulator::exp2_approximate, emulator::recomputed;
using emulator::launch, emulator::dynamic_shared, emulator::store_global;
using emulator::mma_16x8x16, emulator::ldmatrix_x4, emulator::ldmatrix_x4_transposed;
using emulator::SharedAddress, emulator::shared_address;
}  // namespace llampi::device::cuda

#else

#include "device/cuda/launch.cuh"
#include "device/cuda/mma.cuh"

#endif
