// SPDX-License-Identifier: Apache-2.0
// The largest magnitude of a tensor that is to be cast to 8 bits, as op::Fp8Maximum defines it: found where the tensor is
// written. Integers, so that the order in which blocks come does not matter.
#pragma once

#include <type_traits>

#include "device/cuda/vectors.cuh"

namespace llampi::device::cuda {

/// What a kernel of the backward pass does besides its gradient: nothing; it measures the gradient; it writes what the forward
/// pass made once more.
enum class Besides : std::uint8_t { nothing, maximum, output };

/// The bits of |bfloat16(x)|, 0 if that is not finite. x is an element of T that has become a float32.
template <class T>
__device__ inline std::int32_t magnitude_of(float x) {
  std::uint32_t bits = __float_as_uint(x) & 0x7FFFFFFFU;
  if constexpr (!std::is_same_v<T, __nv_bfloat16>)
    bits = (bits + 0x7FFFU + ((bits >> 16) & 1U)) & 0xFFFF0000U;  // NaN stays above infinity
  return bits < 0x7F800000U ? static_cast<std::int32_t>(bits) : 0;
}

/// Of the elements of a vector.
template <class T, int N>
__device__ inline std::int32_t magnitude_of(const Vector<T, N>& vector) {
  std::int32_t largest = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) largest = max(largest, magnitude_of<T>(vector[i]));
  return largest;
}

/// *maximum = max(*maximum, that of the block's threads). All threads of the block call it, at most once in a kernel.
__device__ inline void raise_maximum(std::int32_t largest, std::int32_t* maximum) {
  __shared__ std::int32_t of_block;
  const int thread = static_cast<int>(threadIdx.x + threadIdx.y * blockDim.x);
  const int threads = static_cast<int>(blockDim.x * blockDim.y);
  if (thread == 0) of_block = 0;
  __syncthreads();
  if (thread / 32 < threads / 32) {
    largest = __reduce_max_sync(0xFFFFFFFFU, largest);
    if (thread % 32 == 0) atomicMax(&of_block, largest);
  } else {  // of a warp without all its lanes
    atomicMax(&of_block, largest);
  }
  __syncthreads();
  // Most blocks come too late to raise it, and see that without waiting for each other.
  if (thread == 0 && of_block > __ldcg(maximum)) atomicMax(maximum, of_block);
}

/// The operand of an operation that may measure what it writes; null: it does not.
inline std::int32_t* optional_maximum(const Tensor& maximum) {
  return static_cast<std::int32_t*>(optional_elements_of(maximum, DType::int32, 1, 1, "maximum"));
}

}  // namespace llampi::device::cuda
