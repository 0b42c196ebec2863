// SPDX-License-Identifier: Apache-2.0
#include "llampi/comm/workspace.hpp"

namespace llampi::comm {
namespace {

// NCCL buffers what comes from a neighbour: 4 MiB for its Simple protocol (NCCL_BUFFSIZE; NVIDIA/nccl issue
// 285) and about 6 MiB for the others, 10 MiB that its log of allocations shows for each channel (issue
// 1685). On the NVLinks of eight H100 it uses up to 32 channels, 24 for rings; fewer over networks.
constexpr std::int64_t kChannels = 24;
constexpr std::int64_t kChannelBytes = std::int64_t{10} << 20;

}  // namespace

std::int64_t communicator_bytes(Backend backend, int ranks) {
  return backend == Backend::nccl && ranks > 1 ? kChannels * kChannelBytes : 0;
}

}  // namespace llampi::comm
