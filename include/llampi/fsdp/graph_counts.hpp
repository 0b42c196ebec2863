// SPDX-License-Identifier: Apache-2.0
// What became of steps as CUDA graphs.
#pragma once

#include <cstdint>

namespace llampi::fsdp {

struct GraphCounts {
  std::int64_t replays = 0;   ///< steps that were replays of a captured one
  std::int64_t captures = 0;  ///< times that a step was captured
  std::int64_t nodes = 0;     ///< of the captured steps that are kept, each on the rank where it has most
  /// Distinct device::BatchCounts whose steps are issued, because there is no room for their graph.
  std::int64_t without_room = 0;
};

}  // namespace llampi::fsdp
