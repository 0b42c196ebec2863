// SPDX-License-Identifier: Apache-2.0
#include "fsdp/admission.hpp"

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/fit.hpp"

namespace llampi::fsdp {

void check_that_it_fits(const Site& site, const model::Model& model, const EngineOptions& options,
                        const RankGroups& groups, const CompiledModel& compiled) {
  const comm::Backend backend = site.world.backend();
  const auto& topology = site.world.topology();
  const bool one_memory = site.one_memory;
  const auto on_device = [&](const ArenaBytes& arenas, const RankGroups& in_groups) {
    return needed_bytes(backend, arenas, in_groups, one_memory);
  };
  comm::agree(site.world, [&] {
    const std::int64_t device_bytes = site.device.available_bytes(topology.local_ranks);
    const std::int64_t host_bytes = site.host.available_bytes(topology.local_ranks);
    const auto device_fits = [&](const ArenaBytes& arenas, const RankGroups& in_groups) {
      return on_device(arenas, in_groups) <= device_bytes;
    };
    const auto host_fits = [&](const ArenaBytes& arenas) { return one_memory || arenas[1] <= host_bytes; };
    const bool device_is_full = !device_fits(compiled.arena_bytes, groups);
    if (!device_is_full && host_fits(compiled.arena_bytes)) return;
    const std::optional<Arena> arena =
        one_memory ? std::nullopt : std::optional(device_is_full ? Arena::device : Arena::host);
    const std::string lack = fmt::format(
        "needs {} of {} per rank, but {} has about {} for each of its {}",
        format_bytes(device_is_full ? on_device(compiled.arena_bytes, groups) : compiled.arena_bytes[1]),
        one_memory ? "memory" : (device_is_full ? "GPU memory" : "host memory"), topology.host,
        format_bytes(device_is_full ? device_bytes : host_bytes), count(topology.local_ranks, "rank"));
    throw does_not_fit(lack, compiled, arena,
                       {.model = model,
                        .options = options,
                        .groups = groups,
                        .sizes = site.device.sizes(),
                        .backend = backend,
                        .fits = [&](const auto& arenas, const RankGroups& in_groups) {
                          return device_fits(arenas, in_groups) && host_fits(arenas);
                        }});
  });
}

}  // namespace llampi::fsdp
