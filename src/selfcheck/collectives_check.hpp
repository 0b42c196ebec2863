// SPDX-License-Identifier: Apache-2.0
// Whether collectives over all ranks bring what they should.
#pragma once

#include <cstdint>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "selfcheck/device_check.hpp"

namespace llampi::selfcheck {

/// What a rank contributes to an element: -1, 0 or 1, as if drawn at random, so that a sum which lacks a rank, or an all-gather
/// which takes one for another, differs in most elements.
double contribution(int rank, std::int64_t element);

/// All-gather, reduce-scatter and all-reduce of small whole numbers in float32 and, for up to 256 ranks,
/// bfloat16: sums of them are exact in any order, so nothing may differ. On the streams that the engine uses.
/// Collective; throws what a collective throws.
std::vector<ComparedTensor> check_collectives(comm::World& world, device::Device& device);

}  // namespace llampi::selfcheck
