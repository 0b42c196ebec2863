// SPDX-License-Identifier: Apache-2.0
// Whether a run fits where it is planned for.
#pragma once

#include <cstdint>

#include "llampi/fsdp/compiled_model.hpp"

namespace llampi::plan {

/// About what a process needs beyond the plan: the program and its libraries, MPI's buffers.
inline constexpr std::int64_t kProcessBytes = std::int64_t{64} << 20;

/// What CUDA's context and the libraries take of a GPU when a run has opened and checked it, as measured on
/// one H100 (driver 580, CUDA 13.0). What is loaded later is loaded_later_bytes().
inline constexpr std::int64_t kContextBytes = std::int64_t{543} << 20;

/// The memory that the ranks of a job can have. What is not known is 0, and large enough.
struct PlannedMemory {
  comm::Backend backend = comm::Backend::mpi;  ///< of the collectives: nccl for GPUs
  std::int64_t device_bytes = 0;               ///< for each rank: a GPU's, or its share of the host's on CPUs
  std::int64_t host_bytes = 0;                 ///< of a node with GPUs, their memory not included
  int ranks_per_node = 1;                      ///< the most

  /// What a rank of this mesh needs of the memory of its device: a GPU's with the context, what is loaded
  /// later and communicators, or the host's, where both arenas are, with the process itself.
  std::int64_t needed_on_device(const fsdp::ArenaBytes& arena_bytes, const fsdp::DeviceMesh& mesh,
                                comm::Reduction reduction) const;
  /// What the ranks of a node with GPUs need of the host's memory; 0 on CPUs.
  std::int64_t needed_on_host(const fsdp::ArenaBytes& arena_bytes) const;

  bool device_holds(std::int64_t needed_bytes) const {
    return device_bytes == 0 || needed_bytes <= device_bytes;
  }
  bool host_holds(std::int64_t needed_bytes) const { return host_bytes == 0 || needed_bytes <= host_bytes; }
  bool holds(const fsdp::ArenaBytes& arena_bytes, const fsdp::DeviceMesh& mesh,
             comm::Reduction reduction) const {
    return device_holds(needed_on_device(arena_bytes, mesh, reduction)) &&
           host_holds(needed_on_host(arena_bytes));
  }
};

}  // namespace llampi::plan
