// SPDX-License-Identifier: Apache-2.0
// Ranks with a GPU each: which rank has which, and a World whose groups work on the GPUs' memory, over NCCL.
//
// How these groups differ from those over MPI:
//   - A collective is issued on the device's own stream and returns at once.
//   - With Reduction::tree, sums of float32, bfloat16 and float16 are bitwise equal to MPI's: parts travel by
//     ncclSend and ncclRecv, in pieces that fit the workspace, and a kernel of ours sums them; over several
//     nodes, inside each node first. All of it is on the collective's stream, the pieces one after another.
//   - With Reduction::nccl they are formed in NCCL's order, the same in repeated runs on the same ranks. bfloat16
//     and float16 are summed in their own dtype, so every addition on the way rounds; a result in float32, or one
//     that is added, is cast or added after that, with one more rounding if it is narrow. No workspace: what is
//     said to be left undefined (whole, values) is used instead.
//   - Maxima, integers and float64 always use NCCL's reduction. A maximum of floating-point numbers is not
//     necessarily NaN where one of them is.
//   - Only float32, bfloat16 and float16 can be added to a result.
//   - They are on urgent streams. For each of these, a group of several ranks has its own NCCL
//     communicator, so that gathers and reductions do not wait for each other's end.
//   - All ranks issue the collectives of all streams, and of all their groups, in one order, not only those
//     of each stream. NCCL starts them in that order (NCCL_LAUNCH_ORDER_IMPLICIT, set unless the user has),
//     since kernels that wait for other ranks could otherwise block each other from their GPUs and hang. NCCL
//     connects ranks in the first collective of each kind and size class, while the host waits.
//   - So what is captured into a CUDA graph must have run before without, and the capture must allow other
//     threads to call CUDA (cudaStreamCaptureModeThreadLocal): one of NCCL's own enqueues each collective.
//     Meanwhile neither progress() nor wait(Stream::host) may be called. The graph must be destroyed before
//     the group, which would wait for that.
//   - A lost rank, a failure of NCCL or waiting longer than `patience` ends all communicators of the process
//     (ncclCommAbort), so that no kernel hangs, and throws an Error that names the collective and its group.
//     After that every collective throws.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "llampi/comm/nccl_resources.hpp"
#include "llampi/comm/reduction.hpp"
#include "llampi/device/forward.hpp"

namespace llampi::comm {

struct GpuOfRank {
  int index = 0;  ///< among the visible GPUs
  int ranks = 1;  ///< that have it, this one included
};

/// The GPU that this rank is to use, among those that it sees: that of its number within the node, modulo
/// their number. Collective.
/// @param gpus what this rank sees: all GPUs of its node, or a part of them, or its own alone; at least one
/// @param share_gpu whether ranks may share a GPU
/// @throws ConfigError, the same on all ranks, if two ranks would use one GPU without `share_gpu`; CommonError where their node has
///   lost one: ranks elsewhere see more
GpuOfRank gpu_of_rank(World& world, const std::vector<device::GpuProperties>& gpus, bool share_gpu);

/// Rank, host, GPU, bus id and name of all ranks, a line each. Collective.
std::string gpu_table(World& world, const std::vector<device::GpuProperties>& gpus, int gpu);

struct NcclOptions {
  std::chrono::milliseconds patience = kNcclPatience;  ///< of the host, with NCCL and other ranks
  Reduction reduction = Reduction::tree;
  NcclResources resources = {};
  std::int64_t exchange_bytes = kExchangeBytes;  ///< those of workspace.hpp
  /// For tests: the node of each rank of the world, for sums; none: as they are. NCCL finds its own way.
  std::vector<int> node_of_rank = {};
};

/// `mpi` with groups on the GPUs' memory; host values still go through MPI. Collective. Where ranks share a
/// GPU, sets NCCL_HOSTID, NCCL_NET, NCCL_MNNVL_ENABLE and NCCL_SOCKET_IFNAME unless the user has: each rank
/// is then a node of its own to NCCL, and everything goes over sockets, which is slow and for tests.
/// @param mpi, gpu must outlive the result, its groups and their work; `gpu` is a device of `library`
/// @param options the same on all ranks. After its patience the host gives the job up
std::unique_ptr<World> make_nccl_world(World& mpi, device::Device& gpu, const device::GpuLibrary& library,
                                       const NcclOptions& options = {});

}  // namespace llampi::comm
