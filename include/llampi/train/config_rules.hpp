// SPDX-License-Identifier: Apache-2.0
// Rules between the keys of a configuration.
#pragma once

#include <cstdint>

#include "llampi/train/config.hpp"

namespace llampi::train {

/// Keys that cannot be combined, or would have no effect. None of it needs a file, a device or the number of ranks.
/// @throws UserError that names the keys, their values and what to use
void check_together(const Config& config);
/// Those of them that do not concern sharding, dtypes or adapters: they hold for a configuration that `plan --tune` completes, too.
void check_run(const Config& config);

/// The tokens of a micro-batch must be a multiple of this; 1 without products in 8 bits.
std::int64_t multiple_of_tokens(const Config& config);
/// @param undecided sequences that micro-batches divide which are `auto`: if any of these has such tokens, all of them have
/// @throws UserError
void check_fp8_tokens(const Config& config, std::int64_t undecided);

}  // namespace llampi::train
