// SPDX-License-Identifier: Apache-2.0
// Gradients of vectors (a norm's weight, a bias): each block of a kernel leaves the sum over its rows, and these are summed here.
#pragma once

#include "device/cuda/kernels.cuh"

#include "llampi/core/integers.hpp"

namespace llampi::device::cuda {

inline constexpr int kSumColumns = 32, kSumRows = 8;

/// gradient (+)= the sums of the first `cols` columns of partial [rows, stride], in a fixed order.
template <class G>
__global__ void __launch_bounds__(kSumColumns* kSumRows)
    column_sums_kernel(const float* partial, int rows, std::int64_t stride, std::int64_t cols,
                       bool accumulate, G* gradient) {
  __shared__ float sums[kSumRows][kSumColumns];
  const std::int64_t column = std::int64_t{blockIdx.x} * kSumColumns + threadIdx.x;
  float sum = 0;
  if (column < cols) {
#pragma unroll 8
    for (int row = static_cast<int>(threadIdx.y); row < rows; row += kSumRows)
      sum += partial[row * stride + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= cols) return;
  for (int row = 1; row < kSumRows; ++row) sum += sums[row][threadIdx.x];
  gradient[column] = from_float<G>(accumulate ? to_float(gradient[column]) + sum : sum);
}

/// gradient [1, cols] (+)= the sums of the first columns of partial [rows, stride]; nothing if it is empty.
inline void sum_columns(const float* partial, std::int64_t rows, std::int64_t stride, const Tensor& gradient,
                        Accumulate accumulate, cudaStream_t stream) {
  if (!gradient) return;
  dispatch(gradient.dtype, [&](auto tag) {
    using G = typename decltype(tag)::type;
    launch(column_sums_kernel<G>, dim3(static_cast<unsigned>(ceil_div(gradient.cols, kSumColumns))),
           dim3(kSumColumns, kSumRows), 0, stream, partial, static_cast<int>(rows), stride, gradient.cols,
           accumulate == Accumulate::yes, static_cast<G*>(gradient.data));
  });
}

}  // namespace llampi::device::cuda
