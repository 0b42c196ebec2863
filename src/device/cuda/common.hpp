// SPDX-License-Identifier: Apache-2.0
// What the host code of the CUDA device shares: checked calls, launches, dtypes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "llampi/core/error.hpp"
#include "llampi/core/integers.hpp"
#include "llampi/core/tensor.hpp"

namespace llampi::device::cuda {

/// @throws Error naming the call and CUDA's reason
inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(fmt::format("{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status)));
}

/// A kernel's element types by DType: float, __nv_bfloat16, __half. Calls `work(Tag<T>{})`.
template <class T>
struct Tag {
  using type = T;
};

/// The tensor's memory, after a check of dtype and shape. @throws Error naming the operand
void* elements_of(const Tensor& tensor, DType dtype, std::int64_t rows, std::int64_t cols, const char* name);
template <class T>
T* elements_of(const Tensor& tensor, DType dtype, std::int64_t rows, std::int64_t cols, const char* name) {
  return static_cast<T*>(elements_of(tensor, dtype, rows, cols, name));
}
/// Likewise, null for an empty Tensor.
void* optional_elements_of(const Tensor& tensor, DType dtype, std::int64_t rows, std::int64_t cols,
                           const char* name);
/// The gradient of a weight: float32, or in the dtype of the activations. Null for an empty Tensor.
void* weight_gradient_of(const Tensor& tensor, DType activations, std::int64_t rows, std::int64_t cols,
                         const char* name);

}  // namespace llampi::device::cuda
