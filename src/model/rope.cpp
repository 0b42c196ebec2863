// SPDX-License-Identifier: Apache-2.0
#include "model/rope.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace llampi::model {
namespace {

/// Llama 3.1 slows down the pairs that turn little within the context of pretraining: those that turn less
/// than low_freq_factor times there by `factor`, those that turn more than high_freq_factor times not at all,
/// and in between a mixture that is linear in the number of turns.
double slowed(double frequency, const Llama3Rope& scaling) {
  const double turns = scaling.original_max_position_embeddings * frequency / (2 * std::numbers::pi);
  const double kept = std::clamp(
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0.0, 1.0);
  return kept * frequency + (1 - kept) * frequency / scaling.factor;
}

}  // namespace

std::vector<double> rope_frequencies(const LlamaConfig& config) {
  std::vector<double> frequencies;
  for (std::int64_t pair = 0; pair < config.head_dim / 2; ++pair) {
    const double exponent = -2.0 * static_cast<double>(pair) / static_cast<double>(config.head_dim);
    const double frequency = std::pow(config.rope_theta, exponent);
    frequencies.push_back(config.rope_scaling ? slowed(frequency, *config.rope_scaling) : frequency);
  }
  return frequencies;
}

template <class T>
void fill_rope_table(const std::vector<double>& frequencies, std::int64_t positions, T* table) {
  for (std::int64_t position = 0; position < positions; ++position) {
    for (const double frequency : frequencies)
      *table++ = static_cast<T>(std::cos(static_cast<double>(position) * frequency));
    for (const double frequency : frequencies)
      *table++ = static_cast<T>(std::sin(static_cast<double>(position) * frequency));
  }
}

template void fill_rope_table(const std::vector<double>&, std::int64_t, float*);
template void fill_rope_table(const std::vector<double>&, std::int64_t, double*);

}  // namespace llampi::model
