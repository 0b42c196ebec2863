// SPDX-License-Identifier: Apache-2.0
// The next token from its logits.
#pragma once

#include <cstdint>
#include <vector>

namespace llampi::infer {

/// Draws from softmax(logits / temperature), cut to the smallest set of most likely tokens whose probability
/// reaches top_p (nucleus sampling: Holtzman et al., arXiv 1904.09751).
/// @param temperature 0: the most likely token, of equals the first
/// @param uniform in [0, 1)
std::int32_t draw(const std::vector<double>& logits, double temperature, double top_p, double uniform);

}  // namespace llampi::infer
