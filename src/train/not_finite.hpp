// SPDX-License-Identifier: Apache-2.0
// Steps whose loss or gradient is not finite: where the first such number is.
#pragma once

#include <cstdint>
#include <string>

#include "llampi/comm/forward.hpp"
#include "llampi/device/device.hpp"
#include "llampi/fsdp/engine.hpp"

namespace llampi::train {

/// Where it came from, after a step whose loss or gradient is not finite. In words, the same on all ranks:
/// parameters that hold such a number already (name, element, unit, rank), else the ranks whose own loss is
/// not finite, and the first unit, in forward order, of whose gradient a shard holds one, with the ranks that
/// hold these shards. Collective.
std::string find_not_finite(comm::World& world, device::Device& device, fsdp::Engine& engine,
                            double own_loss);

}  // namespace llampi::train
