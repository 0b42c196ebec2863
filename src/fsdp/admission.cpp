// SPDX-License-Identifier: Apache-2.0
#include "fsdp/admission.hpp"

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/available_memory.hpp"
#include "llampi/fsdp/fit_advice.hpp"

namespace llampi::fsdp {

void check_that_it_fits(const Site& site, const model::Model& model, const EngineOptions& options,
                        const DeviceMesh& mesh, const CompiledModel& compiled) {
  const auto& topology = site.world.topology();
  const bool one_memory = site.one_memory;
  comm::agree(site.world, [&] {
    const AvailableMemory available{.backend = site.world.backend(),
                                    .one_memory = one_memory,
                                    .on_device = site.device.available_bytes(topology.local_ranks),
                                    .on_host = site.host.available_bytes(topology.local_ranks)};
    if (available.holds(compiled.arena_bytes, mesh, options)) return;
    const std::int64_t needed = available.needed_on_device(compiled.arena_bytes, mesh, options);
    const bool device_is_full = !available.device_holds(needed);
    const std::optional<Arena> arena =
        one_memory ? std::nullopt : std::optional(device_is_full ? Arena::device : Arena::host);
    const std::string lack =
        fmt::format("needs {} of {} per rank, but {} has about {} for each of its {}",
                    format_bytes(device_is_full ? needed : available.needed_on_host(compiled.arena_bytes)),
                    one_memory ? "memory" : (device_is_full ? "GPU memory" : "host memory"), topology.host,
                    format_bytes(*(device_is_full ? available.on_device : available.on_host)),
                    count(topology.local_ranks, "rank"));
    throw does_not_fit(lack, compiled, arena,
                       make_fit_question(model, options, mesh, site.device.sizes(), available));
  });
}

}  // namespace llampi::fsdp
