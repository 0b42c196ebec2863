// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/checksum.hpp"

#include <algorithm>

#include "device/cuda/kernels.cuh"

#include "llampi/core/integers.hpp"
#include "llampi/core/mix.hpp"

namespace llampi::device::cuda {
namespace {

constexpr std::int64_t kChecksumBlocks = 1024;

__global__ void __launch_bounds__(kElementThreads)
    add_words(const std::uint16_t* words, std::int64_t count, unsigned long long* sum) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kElementThreads;
  std::uint64_t mine = 0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kElementThreads + threadIdx.x; i < count; i += stride)
    mine += mix_bits((static_cast<std::uint64_t>(i) << 16) + words[i] + 1);
  atomicAdd(sum, static_cast<unsigned long long>(mine));
}

}  // namespace

void checksum(const void* data, std::int64_t bytes, std::uint64_t* sum, cudaStream_t stream) {
  check(cudaMemsetAsync(sum, 0, sizeof *sum, stream), "cudaMemsetAsync");
  const std::int64_t words = bytes / 2;
  if (words == 0) return;
  const std::int64_t blocks = std::min(ceil_div(words, kElementThreads), kChecksumBlocks);
  launch(add_words, dim3(static_cast<unsigned>(blocks)), dim3(kElementThreads), 0, stream,
         static_cast<const std::uint16_t*>(data), words, reinterpret_cast<unsigned long long*>(sum));
}

}  // namespace llampi::device::cuda
