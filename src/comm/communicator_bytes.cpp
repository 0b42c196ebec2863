// SPDX-License-Identifier: Apache-2.0
#include "llampi/comm/workspace.hpp"

#include <algorithm>

#include "llampi/core/integers.hpp"

namespace llampi::comm {
namespace {

// NCCL buffers what comes from a neighbour: 4 MiB for its Simple protocol (NCCL_BUFFSIZE; NVIDIA/nccl issue
// 285) and about 6 MiB for the others, 10 MiB that its log of allocations shows for each channel (issue
// 1685). On the NVLinks of eight H100 it uses up to 32 channels, 24 for rings; fewer over networks.
constexpr std::int64_t kChannels = 24;
constexpr std::int64_t kChannelBytes = std::int64_t{10} << 20;

// What follows is from NCCL's source, 2.28 and 2.30. ncclSend() and ncclRecv() connect two ranks on each of p2pnChannelsPerPeer channels
// (ncclP2pChannelForPart() in enqueue.cc). On a node a connection has buffers of its own, one for each protocol: 4 MiB, 4.7 MiB and 0.5 MiB
// (computeBuffSizes() in init.cc, NCCL_BUFFSIZE, NCCL_LL128_BUFFSIZE, NCCL_LL_BUFFSIZE) in pages of 2 MiB (p2pRecvSetup() in
// transport/p2p.cc), the 10 MiB of above. Over networks those of a direction share one: 16 chunks of 128 KiB for each channel
// (sharedNetBuffersInit() in transport/net.cc, NCCL_P2P_NET_CHUNKSIZE).
constexpr std::int64_t kExchangeChannels =
    32;  // the power of two above the channels of collectives: "32 p2p channels" in logs
// A plan that is not told how many ranks a node has puts all on one.
constexpr int kMostGpusOfANode = 8;
constexpr std::int64_t kNetworkBytes = 2 * kExchangeChannels * 16 * (std::int64_t{128} << 10);

/// Of a pair of ranks: the least that any of them has (ncclTopoComputeP2pChannels() in graph/paths.cc). With the NVLinks of H100 alone all; with a
/// network four, 14 GB/s each of a NIC's 50, and fewer from 64 ranks on, so that all peers of a round have channels.
std::int64_t channels_of_peer(int ranks, bool several_nodes) {
  if (!several_nodes) return kExchangeChannels;
  constexpr int kPeersOfChannel = 8;
  std::int64_t channels = 4;
  while (channels > 1 && channels * ceil_div(ranks, kPeersOfChannel) > kExchangeChannels) channels /= 2;
  return channels;
}

}  // namespace

std::int64_t communicator_bytes(Backend backend, int ranks) {
  return backend == Backend::nccl && ranks > 1 ? kChannels * kChannelBytes : 0;
}

std::int64_t exchange_buffer_bytes(Backend backend, int ranks, int ranks_on_node) {
  if (backend != Backend::nccl || ranks == 1) return 0;
  const int on_node = std::min(ranks_on_node, kMostGpusOfANode);
  const bool several_nodes = on_node < ranks;
  return (on_node - 1) * channels_of_peer(ranks, several_nodes) * kChannelBytes +
         (several_nodes ? kNetworkBytes : 0);
}

}  // namespace llampi::comm
