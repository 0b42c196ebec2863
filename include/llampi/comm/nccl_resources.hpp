// SPDX-License-Identifier: Apache-2.0
// What NCCL may use of a GPU besides bandwidth.
#pragma once

namespace llampi::comm {

/// All off: NCCL decides. Collectives beside computation take multiprocessors from it, one for each CTA (thread block) of theirs.
struct NcclResources {
  int max_ctas = 0;  ///< of a communicator; 0: NCCL decides
  bool window =
      false;  ///< memory that travels is registered as a symmetric window of each group; NCCL 2.27 or newer
  bool copy_engines =
      false;  ///< gathers without multiprocessors, where NCCL can; needs `window`; NCCL 2.28 or newer
};

}  // namespace llampi::comm
