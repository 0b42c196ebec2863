// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/available_memory.hpp"

namespace llampi::fsdp {

std::int64_t AvailableMemory::needed_on_device(const ArenaBytes& arena_bytes, const DeviceMesh& mesh,
                                               comm::Reduction reduction) const {
  const auto [of_device, of_host] = arena_bytes;
  return of_device + (one_memory ? of_host : 0) + communicator_bytes(backend, mesh, reduction) +
         loaded_later_bytes(backend) + process_on_device;
}

std::int64_t AvailableMemory::needed_on_host(const ArenaBytes& arena_bytes) const {
  const auto [of_device, of_host] = arena_bytes;
  return one_memory ? 0 : ranks_on_host * (of_host + process_on_host);
}

}  // namespace llampi::fsdp
