// SPDX-License-Identifier: Apache-2.0
// Random weights. Arithmetic is float64, about 100 operations an element. Computed, not measured: for 8 billion,
// 24 ms at the 34 TFLOP/s of an H100, and 0.6 s where float64 runs at 1.3 TFLOP/s.
#include <algorithm>

#include "device/cuda/cuda_device.hpp"
#include "device/cuda/kernels.cuh"
#include "device/cuda/philox.cuh"
#include "llampi/core/integers.hpp"
#include "llampi/core/normal.hpp"

namespace llampi::device::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kElementThreads)
    random_normal(std::uint64_t key, std::uint64_t purpose, std::uint64_t first, double standard_deviation,
                  T* out, std::int64_t elements) {
  const std::int64_t threads = std::int64_t{gridDim.x} * kElementThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kElementThreads + threadIdx.x; i < elements;
       i += threads) {
    const PhiloxBlock bits = philox(first + static_cast<std::uint64_t>(i), purpose, key);
    const double value =
        standard_normal<ScalarArithmetic>(bits.words[0] | std::uint64_t{bits.words[1]} << 32,
                                          bits.words[2] | std::uint64_t{bits.words[3]} << 32);
    out[i] = from_float<T>(static_cast<float>(standard_deviation * value));
  }
}

}  // namespace

void CudaDevice::execute(const op::RandomNormal& o) {
  constexpr std::int64_t kMostBlocks = 8192;
  const std::int64_t elements = o.out.elements();
  if (elements == 0) return;
  dispatch(o.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto blocks = static_cast<unsigned>(std::min(ceil_div(elements, kElementThreads), kMostBlocks));
    launch(random_normal<T>, dim3(blocks), dim3(kElementThreads), 0, compute(), o.stream.key(),
           o.stream.purpose(), static_cast<std::uint64_t>(o.first), o.standard_deviation,
           static_cast<T*>(o.out.data), elements);
  });
}

}  // namespace llampi::device::cuda
