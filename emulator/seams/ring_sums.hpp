// SPDX-License-Identifier: Apache-2.0
// Sums as NCCL forms them: round a ring of ranks, rounded to the numbers' own dtype at every station.
#pragma once

#include <cstddef>

#include "llampi/comm/comm.hpp"
#include "llampi/core/tensor.hpp"

namespace llampi::emulator {

/// What all ranks give: [ranks, stride].
struct Contributions {
  DType dtype;
  comm::ReduceOp op;
  const std::byte* all;
  std::size_t stride;
  int ranks;
};

/// out[i] of `elements` = sum or maximum of element `begin` + i of every rank's row, beginning with the rank
/// behind `owner`.
void combine_round_the_ring(const Contributions& of, int owner, std::size_t begin, std::size_t elements,
                            std::byte* out);

}  // namespace llampi::emulator
