// SPDX-License-Identifier: Apache-2.0
// Rows of heads, for kernels in which a lane of a warp has a key while there are scores to compute, and then columns of the head.
#pragma once

#include <cstdint>

#include "device/cuda/attention.cuh"
#include "device/cuda/vectors.cuh"

namespace llampi::device::cuda {

template <class T>
__device__ inline void read_row(const T* from, int dim, int lane, float* to) {
  for (int d = lane; d < dim; d += 32) to[d] = to_float(from[d]);
}

template <int kWidth, class T>
__device__ inline float dot(const float* a, const T* b, int dim) {
  float sum = 0;
  for (int d = 0; d < dim; d += kWidth) {
    const Vector<T, kWidth> v = load_vector<kWidth>(b + d);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += a[d + i] * v[i];
  }
  return sum;
}

/// Rows in memory, `stride` elements apart.
template <class T>
struct StridedRows {
  const T* first;
  std::int64_t stride;
};

/// sums[i] += sum over j < count of weights[j] * rows[j][lane + 32 i]
template <class T>
__device__ inline void add_rows(float (&sums)[kLaneColumns], const float* weights, StridedRows<T> rows,
                                int count, int dim, int lane) {
  for (int j = 0; j < count; ++j) {
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      if (lane + 32 * i < dim) sums[i] += weights[j] * to_float(rows.first[j * rows.stride + lane + 32 * i]);
    }
  }
}

template <class T>
__device__ inline void write_row(const float (&sums)[kLaneColumns], float factor, T* to, int dim, int lane) {
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) {
    if (lane + 32 * i < dim) to[lane + 32 * i] = from_float<T>(sums[i] * factor);
  }
}

/// work(Tag<T>{}, elements that are read at once): 16 bytes where each head starts at a multiple of them.
template <class Work>
void dispatch_width(int dim, DType dtype, const Work& work) {
  dispatch(dtype, [&](auto tag) {
    constexpr int kWidth = 16 / sizeof(typename decltype(tag)::type);
    with_width<kWidth>(dim % kWidth == 0, [&](auto width) { work(tag, width); });
  });
}

}  // namespace llampi::device::cuda
