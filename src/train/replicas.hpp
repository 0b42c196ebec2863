// SPDX-License-Identifier: Apache-2.0
// What several ranks hold of the same shard, compared: a GPU or a link that computes or carries something
// wrong now and then shows here, and nowhere else.
#pragma once

#include <string>

#include "llampi/comm/forward.hpp"
#include "llampi/fsdp/engine.hpp"

namespace llampi::train {

/// Compares parameters and moments, by checksums of what is in memory, among the ranks that hold the same
/// shard. Returns which ranks differ from the most of these, and where first; empty if none does. The same on
/// all ranks. Collective.
std::string find_differing_replicas(comm::World& world, device::Device& device, const fsdp::Engine& engine);

}  // namespace llampi::train
