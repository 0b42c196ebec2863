// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/available_memory.hpp"

#include "llampi/comm/comm.hpp"
#include "llampi/comm/compute.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/workspace.hpp"

namespace llampi::fsdp {

std::int64_t communicator_bytes(comm::Backend backend, const DeviceMesh& mesh, const EngineOptions& options) {
  const int shards = mesh.shard_count(), replicas = mesh.replica_count();
  std::int64_t bytes =
      2 * comm::communicator_bytes(backend, shards) + comm::communicator_bytes(backend, replicas);
  if (options.training && options.reduction == comm::Reduction::tree) {
    bytes += comm::exchange_buffer_bytes(backend, shards, mesh.shards_on_node) +
             comm::exchange_buffer_bytes(backend, replicas, mesh.replicas_on_node);
  }
  return bytes;
}

std::int64_t graph_bytes(comm::Backend backend, const EngineOptions& options) {
  const bool captures =
      backend == comm::Backend::nccl && options.training && options.graph && !options.offload.host_step;
  return captures ? options.graph_nodes * kGraphNodeBytes : 0;
}

std::int64_t AvailableMemory::needed_on_device(const ArenaBytes& arena_bytes, const DeviceMesh& mesh,
                                               const EngineOptions& options) const {
  const auto [of_device, of_host] = arena_bytes;
  return of_device + (one_memory ? of_host : 0) + communicator_bytes(backend, mesh, options) +
         loaded_later_bytes(backend) + graph_bytes(backend, options) + process_on_device;
}

std::int64_t AvailableMemory::needed_on_host(const ArenaBytes& arena_bytes) const {
  const auto [of_device, of_host] = arena_bytes;
  return one_memory ? 0 : ranks_on_host * (of_host + process_on_host);
}

AvailableMemory available_to_all(comm::World& world, const comm::Compute& compute) {
  const int local_ranks = world.topology().local_ranks;
  std::int64_t least[] = {compute.device().available_bytes(local_ranks),
                          compute.host->available_bytes(local_ranks)};
  comm::min_over_ranks(world, least);
  return {.backend = compute.world().backend(),
          .one_memory = !compute.on_gpu(),
          .on_device = least[0],
          .on_host = least[1]};
}

std::unique_ptr<device::OperationSizes> sizes_for_all(comm::World& world, const comm::Compute& compute,
                                                      int threads) {
  const auto most = static_cast<int>(comm::max_over_ranks(world, std::int64_t{threads}));
  return compute.on_gpu() ? device::make_gpu_sizes() : device::make_cpu_sizes(most);
}

}  // namespace llampi::fsdp
