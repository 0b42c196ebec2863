// SPDX-License-Identifier: Apache-2.0
// Whether arenas fit in the memory of the ranks: of those that run, or of those that are planned.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "llampi/comm/forward.hpp"
#include "llampi/device/device.hpp"
#include "llampi/fsdp/compiled_model.hpp"

namespace llampi::fsdp {

/// What CUDA loads on a rank's GPU after a run has opened and checked it: kernels of the step's own shapes and
/// the libraries' memory for them, 2 to 180 MiB on one H100 (driver 580, CUDA 13.0). 0 on CPUs.
constexpr std::int64_t loaded_later_bytes(comm::Backend backend) {
  return backend == comm::Backend::nccl ? std::int64_t{180} << 20 : 0;
}

/// What the CUDA graphs of a rank's steps may take of its GPU, an estimate; 0 where steps are not captured.
std::int64_t graph_bytes(comm::Backend backend, const EngineOptions& options);

/// About what the communicators of a rank take of the device's memory: the shard group's gathers and its reductions, which exchange
/// parts unless NCCL reduces, have one each, and so have the replicas' reductions.
std::int64_t communicator_bytes(comm::Backend backend, const DeviceMesh& mesh, const EngineOptions& options);

/// What a rank can have, in bytes. What is not known is large enough.
struct AvailableMemory {
  comm::Backend backend = comm::Backend::mpi;  ///< of the collectives: nccl for GPUs
  bool one_memory = false;  ///< the device computes in host memory, where the host's arena is too
  std::optional<std::int64_t> on_device = {};  ///< for each rank
  std::optional<std::int64_t> on_host = {};  ///< for `ranks_on_host` together; not asked for with one_memory
  int ranks_on_host = 1;
  /// What a process itself takes of both. 0 where it runs already, and what it has left was measured.
  std::int64_t process_on_device = 0, process_on_host = 0;

  /// What a rank of this mesh takes of its device: its arena (with one_memory both), buffers that communicators allocate
  /// in their first collectives, kernels that are loaded when they are first used, graphs, and the process.
  /// @param options of the run; of them, what decides about communicators and graphs
  std::int64_t needed_on_device(const ArenaBytes& arena_bytes, const DeviceMesh& mesh,
                                const EngineOptions& options) const;
  /// What `ranks_on_host` take of the host; 0 with one_memory.
  std::int64_t needed_on_host(const ArenaBytes& arena_bytes) const;

  bool device_holds(std::int64_t needed_bytes) const { return !on_device || needed_bytes <= *on_device; }
  bool host_holds(std::int64_t needed_bytes) const { return !on_host || needed_bytes <= *on_host; }
  bool holds(const ArenaBytes& arena_bytes, const DeviceMesh& mesh, const EngineOptions& options) const {
    return device_holds(needed_on_device(arena_bytes, mesh, options)) &&
           host_holds(needed_on_host(arena_bytes));
  }
};

/// What every rank of a job that runs has, so that all decide the same. Collective.
AvailableMemory available_to_all(comm::World& world, const comm::Compute& compute);
/// Of operations, the same on all ranks: some of a CPU grow with its threads, and nodes may differ in these. Collective.
/// @param threads of this rank
std::unique_ptr<device::OperationSizes> sizes_for_all(comm::World& world, const comm::Compute& compute,
                                                      int threads);

}  // namespace llampi::fsdp
