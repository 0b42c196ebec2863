// SPDX-License-Identifier: Apache-2.0
// Checks of speed before a run: each rank computes and communicates as fast as the others.
#pragma once

#include <functional>
#include <vector>

#include "llampi/comm/compute.hpp"
#include "llampi/selfcheck/speed.hpp"
#include "train/preflight/checklist.hpp"

namespace llampi::train {

/// Collective. @param seconds takes those of each rank
void check_products(Checklist& list, comm::Compute& compute, DType dtype, std::vector<double>& seconds);
/// Collective.
/// @param progress called before each round of messages
void check_links(Checklist& list, comm::Compute& compute, selfcheck::LinkSpeeds& links,
                 const std::function<void()>& progress);

/// Of a run that keeps something in host memory. @param bytes_per_second of each rank, as measured before; not empty
void check_copies(Checklist& list, const std::vector<double>& bytes_per_second);

}  // namespace llampi::train
