// SPDX-License-Identifier: Apache-2.0
// What NCCL may use of a GPU besides bandwidth.
#pragma once

#include <chrono>

namespace llampi::comm {

/// How long the host waits for NCCL and other ranks, unless told otherwise.
inline constexpr std::chrono::milliseconds kNcclPatience = std::chrono::minutes(10);

/// All off: NCCL decides. Collectives that overlap with computation take one multiprocessor from it for each CTA (thread block).
struct NcclResources {
  int max_ctas = 0;     ///< of a communicator; 0: NCCL decides
  bool window = false;  ///< memory that travels is registered as a symmetric window of each group
  bool copy_engines =
      false;  ///< gathers without multiprocessors, where NCCL can; needs `window`; NCCL 2.28 or newer
  /// The communicators of a group are split from its first one and share its connections and buffers (ncclCommSplit, splitShare).
  /// NCCL then starts each kernel of theirs after the end of the one before it, whatever their streams (ncclLaunchPrepare() waits for
  /// sharedRes->deviceStream, NCCL 2.30): a gather and a reduction of one group no longer run side by side.
  bool split_share = false;
};

}  // namespace llampi::comm
