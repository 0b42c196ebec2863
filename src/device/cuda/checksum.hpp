// SPDX-License-Identifier: Apache-2.0
// Whether two results have the same bits, without a copy of either.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace llampi::device::cuda {

/// *sum, device memory, becomes a number of all 16-bit words of `data` and their places: whole numbers added
/// modulo 2^64, so that it does not depend on the order.
/// @param bytes even
void checksum(const void* data, std::int64_t bytes, std::uint64_t* sum, cudaStream_t stream);

}  // namespace llampi::device::cuda
