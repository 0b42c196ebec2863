// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/common.hpp"

namespace llampi::device::cuda {

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(
      fmt::format("{}: {} ({})", what, cublasLtGetStatusString(status), cublasLtGetStatusName(status)));
}

std::string cublas_version() {
  const std::size_t version = cublasLtGetVersion();
  return fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void* optional_elements_of(const Tensor& tensor, DType dtype, std::int64_t rows, std::int64_t cols,
                           const char* name) {
  if (!tensor) return nullptr;
  if (tensor.dtype == dtype && tensor.rows == rows && tensor.cols == cols) return tensor.data;
  throw Error(fmt::format("internal error: {} is {} [{}, {}], not {} [{}, {}]", name, to_string(tensor.dtype),
                          tensor.rows, tensor.cols, to_string(dtype), rows, cols));
}

void* elements_of(const Tensor& tensor, DType dtype, std::int64_t rows, std::int64_t cols, const char* name) {
  void* const data = optional_elements_of(tensor, dtype, rows, cols, name);
  if (data == nullptr && rows * cols > 0) throw Error(fmt::format("internal error: {} is empty", name));
  return data;
}

}  // namespace llampi::device::cuda
