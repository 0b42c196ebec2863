// SPDX-License-Identifier: Apache-2.0
// CUDA as plain C++: the one header that is injected into kernels (README.md). The built-in variables,
// barriers, operations of warps and intrinsics that they use, how they are launched, and tensor cores.
//
// Kernels run in one host thread, so atomics are plain. `__shared__` variables are thread-local because the
// emulator then knows where they all are, and fills them with NaN when a block starts: a program that links
// it has no thread-local variables of its own. CUDA's headers give the vector types and the conversions of
// cuda_bf16.h and cuda_fp16.h.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "emulator/block.hpp"
#include "emulator/intrinsics.hpp"
#include "emulator/streams.hpp"
#include "emulator/tensor_cores.hpp"

#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)

inline constexpr int warpSize = 32;

// What cuda_runtime.h declares for nvcc only.
template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class... Parameters>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*kernel)(Parameters...),
                                                          int threads, std::size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, reinterpret_cast<const void*>(kernel), threads,
                                                       shared_bytes);
}

namespace llampi::emulator {

/// Arguments are converted and copied now, the kernel runs when its stream comes to it.
/// @throws Error for a grid, block or amount of shared memory that a GPU refuses
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
            cudaStream_t stream, Arguments&&... arguments) {
  static_assert((!std::is_reference_v<Parameters> && ...), "kernels take values");
  check_launch_shape(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes);
  enqueue(stream, [=, values = std::tuple<Parameters...>(static_cast<Parameters>(arguments)...)] {
    run_grid(grid, block, shared_bytes, [&] { std::apply(kernel, values); });
  });
}

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(dynamic_shared_memory());
}

/// What st.global does with an address in shared memory is not defined.
template <class Unit>
void store_global(Unit* to, Unit unit) {
  require(!is_shared(to), "store_global() to shared memory");
  *to = unit;
}

}  // namespace llampi::emulator
