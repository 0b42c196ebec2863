// SPDX-License-Identifier: Apache-2.0
// Checksums of what is in memory of parameters and moments, to compare states bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "llampi/device/device.hpp"
#include "llampi/fsdp/engine.hpp"

namespace llampi::train {

/// Of each parameter of the engine's model: of this rank's part of it (0 if it has none) and, with `moments`, of its
/// moments.
std::vector<std::uint32_t> state_sums(device::Device& device, const std::vector<fsdp::StatePiece>& pieces,
                                      const fsdp::Engine& engine, bool moments = true);

}  // namespace llampi::train
