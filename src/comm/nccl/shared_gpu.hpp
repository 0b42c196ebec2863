// Several ranks on one GPU, which NCCL refuses unless it takes them for ranks of different nodes.
#pragma once

#include "llampi/comm/comm.hpp"

namespace llampi::nccl {

/// If any two ranks have the same GPU, sets NCCL_HOSTID, NCCL_NET and NCCL_SOCKET_IFNAME in this process,
/// where the user has not. To be called before NCCL makes a communicator. Collective.
/// @param gpu index of this rank's
/// @return whether ranks share a GPU, the same on all
bool separate_ranks_that_share_a_gpu(World& mpi, int gpu);

}  // namespace llampi::nccl
