// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <vector>

#include "fsdp/state/views.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/fsdp/streams.hpp"

namespace llampi::fsdp {

void refresh_shards(const CompiledModel& compiled, const Arenas& arenas, device::Device& device,
                    device::Device& host, comm::Group& replicas, device::Stream gathers_on) {
  const auto in_host_memory = [&](BufferId id) { return compiled.evaluation[id].arena == Arena::host; };
  const auto own_part = [&](int unit) {
    const UnitState& state = compiled.persistent().units[static_cast<std::size_t>(unit)];
    const bool parts = compiled.units[static_cast<std::size_t>(unit)].state_parts > 1;
    return arenas.at(compiled.evaluation[state.shard], {.own = parts ? Own::replica_part : Own::none},
                     {.replicas = {replicas.rank(), replicas.size()}});
  };
  const int units = static_cast<int>(compiled.units.size());
  for (int u = 0; u < units; ++u) {
    const UnitState& unit = compiled.persistent().units[static_cast<std::size_t>(u)];
    if (!unit.has_own_master()) continue;
    const Tensor master = arenas.at(compiled.evaluation[unit.master]);
    const Tensor shard = own_part(u);
    if (in_host_memory(unit.master) == in_host_memory(unit.shard)) {
      (in_host_memory(unit.master) ? host : device)
          .run(device::op::Cast{.source = master, .destination = shard});
      continue;
    }
    std::vector<std::byte> cast(static_cast<std::size_t>(shard.bytes()));
    host.run(
        device::op::Cast{.source = master, .destination = {cast.data(), shard.dtype, 1, shard.elements()}});
    device.upload(shard, cast.data(), kH2dStream);
    device.synchronize(kH2dStream);
  }
  device.wait(gathers_on, device.record(device::Stream::compute));
  std::vector<std::unique_ptr<comm::Work>> gathers;
  for (int u = 0; u < units; ++u) {
    if (compiled.units[static_cast<std::size_t>(u)].state_parts == 1) continue;
    const BufferId shard = compiled.persistent().units[static_cast<std::size_t>(u)].shard;
    gathers.push_back(replicas.all_gather(own_part(u), arenas.at(compiled.evaluation[shard]), gathers_on));
  }
  for (const auto& gather : gathers) gather->wait(device::Stream::compute);
}

}  // namespace llampi::fsdp
