// SPDX-License-Identifier: Apache-2.0
// Sums as NCCL forms them: round a ring of ranks, rounded to the numbers' own dtype at every station.
#pragma once

#include <nccl.h>

#include <cstddef>

namespace llampi::emulated_nccl {

std::size_t size_of(ncclDataType_t type);

/// out[i] of `elements` = sum or maximum of element `begin` + i of every row of `all` [ranks, stride],
/// beginning with the rank behind `owner`.
void combine_round_the_ring(ncclDataType_t type, ncclRedOp_t op, const std::byte* all, std::size_t stride,
                            int ranks, int owner, std::size_t begin, std::size_t elements, std::byte* out);

}  // namespace llampi::emulated_nccl
