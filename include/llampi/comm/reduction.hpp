// SPDX-License-Identifier: Apache-2.0
// Who sums what GPUs reduce.
#pragma once

#include <array>
#include <cstdint>

#include "llampi/core/words.hpp"

namespace llampi::comm {

/// Of sums of float32, bfloat16 and float16 between GPUs. (Maxima and integers, which are exact in any order, and float64 are
/// always NCCL's. MPI always sums as `tree` does.)
enum class Reduction : std::uint8_t {
  tree,  ///< ranks send each other their parts, and the owner sums them in float32 in the order of tree_left()
  nccl,  ///< NCCL: in an order of its own, and in the dtype that travels
};
constexpr auto word_table(Reduction) {
  return std::to_array<Word<Reduction>>({{Reduction::tree, "tree"}, {Reduction::nccl, "nccl"}});
}

/// Room for the parts of other ranks with Reduction::tree, on each GPU: what is larger goes in pieces, one after another; what would
/// need more than 16 pieces has more room.
inline constexpr std::int64_t kExchangeBytes = std::int64_t{64} << 20;

}  // namespace llampi::comm
