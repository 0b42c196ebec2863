// SPDX-License-Identifier: Apache-2.0
// What emulated GPUs send each other: MPI, started and finished when their streams come to it.
#pragma once

#include <cuda_runtime.h>
#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace llampi::emulator {

class Capture;

/// Of a communicator and of what it has in streams.
struct Link {
  MPI_Comm mpi = MPI_COMM_NULL;
  int rank = 0;
  int ranks = 1;
  std::atomic<bool> dead = false;  ///< exchanges end without having done anything
  std::map<int, int> numbers;      ///< of captures, in the order in which their collectives were called

  /// From 1, and the same on all ranks, whatever else each of them captures.
  int number_of(const Capture& capture);
};

/// The ranks of a group find each other through the one that made the id.
struct Id {
  int root;  ///< world rank of the group's rank 0
  int serial;
};
MPI_Comm connect(const Id& id, int rank, int ranks);

void check_mpi(int code);

/// What a rank sends: `bytes` to all; or parts `to` a rank each.
struct Sent {
  struct Part {
    const void* data = nullptr;
    int to = 0;
  };
  const void* data = nullptr;
  std::size_t bytes = 0;  ///< of a part too
  bool in_parts = false;  ///< `parts`, which may be none, instead of `data`
  std::vector<Part> parts = {};
  std::vector<int> arriving = {};  ///< how many parts each rank sends to this one
};

/// Every rank's bytes, one rank after another, and those of one rank in their order; they may be moved from.
using Received = std::vector<std::byte>;
/// Enqueues an exchange: `with` gets what all ranks sent to this one. The rank's GPU does other
/// things meanwhile; but for eager streams, where the rank waits at once. All ranks must have it in a graph
/// of the same number, or none.
void exchange(const std::shared_ptr<Link>& link, const Sent& sent, cudaStream_t stream,
              std::function<void(Received&)> with);

}  // namespace llampi::emulator
