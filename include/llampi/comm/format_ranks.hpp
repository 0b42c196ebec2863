// SPDX-License-Identifier: Apache-2.0
// Ranks in words.
#pragma once

#include <string>
#include <vector>

namespace llampi::comm {

/// "rank 3", "ranks 0-2, 5".
std::string format_ranks(const std::vector<int>& ranks);

}  // namespace llampi::comm
