// SPDX-License-Identifier: Apache-2.0
// Micro-batches on their way to the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fsdp/runtime/handlers.hpp"
#include "llampi/device/host_batch.hpp"
#include "llampi/fsdp/arenas.hpp"

namespace llampi::fsdp {

/// Where the device reads micro-batches as so many documents: for a device that wants them in memory of its
/// own kind a copy in the program's host_inputs, with empty documents after the real ones; else where they
/// are, with their own counts.
std::vector<PlacedInput> place_inputs(const Program& program, Arenas& arenas,
                                      std::span<const device::HostBatch> micro_batches,
                                      const BatchCounts& counts);

/// For how many documents operations are issued, so that few numbers occur: powers of two, and never fewer
/// than before. What is computed does not depend on them. Whole sequences are not counted: they keep their
/// own number, for which there are faster kernels. The number of labels stays as it is: there are few already, and it decides in
/// which order gradients of the head are summed, so it must not depend on the steps before.
class RoundedCounts {
 public:
  /// @param most of each of all micro-batches, of all ranks
  BatchCounts of(const BatchCounts& most, model::BatchShape batch);

 private:
  BatchCounts so_far_;
};

}  // namespace llampi::fsdp
