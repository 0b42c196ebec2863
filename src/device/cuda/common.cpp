// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/common.hpp"

namespace llampi::device::cuda {

void* optional_elements_of(const Tensor& tensor, DType dtype, std::int64_t rows, std::int64_t cols,
                           const char* name) {
  if (!tensor) return nullptr;
  if (tensor.dtype == dtype && tensor.rows == rows && tensor.cols == cols) return tensor.data;
  throw Error(fmt::format("internal error: {} is {} [{}, {}], not {} [{}, {}]", name, to_string(tensor.dtype),
                          tensor.rows, tensor.cols, to_string(dtype), rows, cols));
}

void* weight_gradient_of(const Tensor& tensor, DType activations, std::int64_t rows, std::int64_t cols,
                         const char* name) {
  const DType dtype = tensor.dtype == activations ? activations : DType::float32;
  return optional_elements_of(tensor, dtype, rows, cols, name);
}

void* elements_of(const Tensor& tensor, DType dtype, std::int64_t rows, std::int64_t cols, const char* name) {
  void* const data = optional_elements_of(tensor, dtype, rows, cols, name);
  if (data == nullptr && rows * cols > 0) throw Error(fmt::format("internal error: {} is empty", name));
  return data;
}

}  // namespace llampi::device::cuda
