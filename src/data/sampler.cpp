// SPDX-License-Identifier: Apache-2.0
#include "llampi/data/sampler.hpp"

#include <fmt/format.h>

#include "llampi/core/config_error.hpp"
#include "llampi/core/philox.hpp"
#include "llampi/core/text.hpp"

namespace llampi::data {
namespace {

// Four rounds are enough for large domains; more, because small ones (a handful of samples) mix badly with
// few.
constexpr std::uint32_t kRounds = 8;

std::uint64_t round_function(std::uint64_t half, std::uint32_t round, std::uint64_t key) {
  return philox({static_cast<std::uint32_t>(half), round, 0, 0},
                {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)})[0];
}

}  // namespace

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch)
    : size_(size), half_bits_(0) {
  require(size >= 0 && size <= std::int64_t{1} << 62, "size of a permutation");
  while (std::int64_t{1} << (2 * half_bits_) < size) ++half_bits_;
  const RandomStream stream(seed, fmt::format("shuffle epoch {}", epoch));
  for (std::uint64_t i = 0; i < 4; ++i) key_[i] = stream.bits(i);
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  require(index >= 0 && index < size_, "index of a permutation");
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {  // The network permutes [0, 4^half_bits); walk its cycle until back in [0, size): fewer than 4 steps
        // on average.
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & mask;
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed = left ^ (round_function(right, round, key_[round % 4]) & mask);
      left = right;
      right = mixed;
    }
    value = left << half_bits_ | right;
  } while (value >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value);
}

Sampler::Sampler(std::int64_t samples, std::int64_t global_batch, std::uint64_t seed, bool shuffle)
    : samples_(samples), global_batch_(global_batch), steps_per_epoch_(0), seed_(seed), shuffle_(shuffle) {
  require(global_batch > 0, "global batch of a sampler");
  if (samples < global_batch) {
    throw ConfigError(
        {.field = "global_batch",
         .value = std::to_string(global_batch),
         .problem = fmt::format("is more than the {} of the training data", count(samples, "sample")),
         .remedy = "give more text, a smaller batch or shorter samples"});
  }
  steps_per_epoch_ = samples / global_batch;
}

std::int64_t Sampler::sample(std::int64_t step, std::int64_t index) const {
  require(step >= 1 && index >= 0 && index < global_batch_, "step or index of a sample");
  const std::int64_t position = (step - 1) % steps_per_epoch_ * global_batch_ + index;
  return shuffle_ ? Permutation(samples_, seed_, epoch(step))(position) : position;
}

}  // namespace llampi::data
