// SPDX-License-Identifier: Apache-2.0
// Whether what was compiled fits, asked before anything is allocated.
#pragma once

#include "llampi/fsdp/compiled_model.hpp"

namespace llampi::fsdp {

/// Where the programs of a compiled model are to run.
struct Site {
  device::Device& device;
  device::Device& host;  ///< computes in host memory
  bool one_memory;       ///< the device computes in host memory too
  comm::World& world;
};

/// Collective.
/// @throws UserError on all ranks, with what would make it fit, if it does not fit on some
void check_that_it_fits(const Site& site, const model::Model& model, const EngineOptions& options,
                        const DeviceMesh& mesh, const CompiledModel& compiled);

}  // namespace llampi::fsdp
