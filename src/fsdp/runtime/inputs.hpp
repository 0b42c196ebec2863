// SPDX-License-Identifier: Apache-2.0
// Micro-batches on their way to the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fsdp/runtime/operations.hpp"
#include "llampi/device/host_batch.hpp"
#include "llampi/fsdp/arenas.hpp"

namespace llampi::fsdp {

/// Where the device reads micro-batches as `segments` segments: for a device that wants them in memory of its
/// own kind a copy in the program's host_inputs, with empty segments after the real ones.
std::vector<PlacedInput> place_inputs(const Program& program, Arenas& arenas,
                                      std::span<const device::HostBatch> micro_batches,
                                      std::int64_t segments);

/// For how many segments operations are issued, so that few numbers occur: a power of two. But sequences
/// without a border inside keep their own number, for which there are faster kernels.
std::int64_t rounded_segments(std::int64_t segments, model::BatchShape batch);

}  // namespace llampi::fsdp
