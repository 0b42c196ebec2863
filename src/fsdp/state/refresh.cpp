// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "fsdp/state/views.hpp"
#include "llampi/fsdp/streams.hpp"

namespace llampi::fsdp {

void refresh_shards(const CompiledModel& compiled, const Arenas& arenas, device::Device& device,
                    device::Device& host) {
  const auto in_host_memory = [&](BufferId id) { return compiled.evaluation[id].arena == Arena::host; };
  for (const UnitState& unit : compiled.persistent().units) {
    if (!unit.has_own_master()) continue;
    const Tensor master = arenas.at(compiled.evaluation[unit.master]);
    const Tensor shard = arenas.at(compiled.evaluation[unit.shard]);
    if (in_host_memory(unit.master) == in_host_memory(unit.shard)) {
      (in_host_memory(unit.master) ? host : device)
          .run(device::op::Cast{.source = master, .destination = shard});
      continue;
    }
    std::vector<std::byte> cast(static_cast<std::size_t>(shard.bytes()));
    host.run(
        device::op::Cast{.source = master, .destination = {cast.data(), shard.dtype, 1, shard.elements()}});
    device.upload(shard, cast.data(), kCopyStream);
    device.synchronize(kCopyStream);
  }
  device.synchronize(device::Stream::compute);  // the first gathers of a program wait for nothing
}

}  // namespace llampi::fsdp
