// SPDX-License-Identifier: Apache-2.0
#include "fsdp/state/snapshot.hpp"
#include "llampi/fsdp/streams.hpp"

namespace llampi::fsdp {

Snapshot::Snapshot(device::Device& device, const CompiledModel& compiled, const StateViews& views,
                   Arenas& arenas)
    : device_(device) {
  for (const auto& [from, to] : views.snapshot_copies()) arenas.mark_used(compiled.evaluation[to]);
}

// On the stream beside the computation: what a step copies out does not stand behind it.
void Snapshot::take(const StateViews& views) {
  for (const auto stream : {device::Stream::compute, kH2dStream})
    device_.wait(kSideStream, device_.record(stream));
  for (const auto& [from, to] : views.snapshot_copies()) {
    // The device's own copy: it also takes what is kept in host memory.
    device_.download(views.at(to).data, from, kSideStream);
  }
  copied_ = device_.record(kSideStream);
  pending_ = true;
}

}  // namespace llampi::fsdp
