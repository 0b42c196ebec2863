// SPDX-License-Identifier: Apache-2.0
// The check that a run makes of its GPUs before it depends on them.
#pragma once

#include <cstdint>

#include "llampi/comm/compute.hpp"
#include "llampi/core/log.hpp"
#include "llampi/core/tensor.hpp"

namespace llampi::selfcheck {

/// Compares each rank's GPU with its CPU (see device_check.hpp) in what the run computes in, before anything
/// depends on it. Does nothing on CPUs. Collective.
/// @throws CommonError that names the rank, its GPU, what differs and by how much
void check_gpus(comm::World& world, comm::Compute& compute, DType dtype, bool tf32, std::int64_t head_dim,
                const Log& log);

}  // namespace llampi::selfcheck
