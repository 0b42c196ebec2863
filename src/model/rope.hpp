// SPDX-License-Identifier: Apache-2.0
// The angles of rotary position embeddings (Su et al., arXiv 2104.09864).
#pragma once

#include <cstdint>
#include <vector>

#include "llampi/model/llama_config.hpp"

namespace llampi::model {

/// Radians per position of each of the head_dim / 2 pairs of channels: theta^(-2j / head_dim), slowed by the
/// llama3 scaling where the configuration asks for it.
std::vector<double> rope_frequencies(const LlamaConfig& config);

/// table[p] = cosines of p * frequency, then sines. [positions, 2 * frequencies.size()]; T is float or
/// double.
template <class T>
void fill_rope_table(const std::vector<double>& frequencies, std::int64_t positions, T* table);

}  // namespace llampi::model
