// SPDX-License-Identifier: Apache-2.0
#include "llampi/plan/planned_memory.hpp"

#include "llampi/fsdp/fit_decisions.hpp"

namespace llampi::plan {

std::int64_t PlannedMemory::needed_on_device(const fsdp::ArenaBytes& arena_bytes,
                                             const fsdp::DeviceMesh& mesh, comm::Reduction reduction) const {
  const bool on_cpus = backend == comm::Backend::mpi;
  return fsdp::needed_bytes(backend, arena_bytes, mesh, reduction, on_cpus) +
         (on_cpus ? kProcessBytes : kContextBytes);
}

std::int64_t PlannedMemory::needed_on_host(const fsdp::ArenaBytes& arena_bytes) const {
  if (backend == comm::Backend::mpi) return 0;
  return ranks_per_node * (arena_bytes[static_cast<std::size_t>(fsdp::Arena::host)] + kProcessBytes);
}

}  // namespace llampi::plan
