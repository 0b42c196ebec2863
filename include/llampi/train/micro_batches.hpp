// SPDX-License-Identifier: Apache-2.0
// Into how many micro-batches the ranks divide a step.
#pragma once

#include "llampi/train/config.hpp"

namespace llampi::train {

/// Micro-batches per rank and step. @throws UserError if the global batch does not divide into them, or into too many
int micro_batches_of_step(const Config& config, int ranks);

}  // namespace llampi::train
