// SPDX-License-Identifier: Apache-2.0
// Which sample is read when: a seeded permutation per epoch, computed point by point, so that it can start
// anywhere in constant time and does not depend on the number of ranks.
#pragma once

#include <cstdint>

namespace llampi::data {

/// A permutation of [0, size), keyed by (seed, epoch): a Feistel network over the next power of four with
/// cycle walking (Black & Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002), rounds from Philox.
class Permutation {
 public:
  Permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch);
  std::int64_t operator()(std::int64_t index) const;

 private:
  std::int64_t size_;
  int half_bits_;
  std::uint64_t key_[4];
};

/// Steps of an epoch: floor(samples / global_batch); the rest is dropped.
class Sampler {
 public:
  /// @throws UserError if samples < global_batch
  Sampler(std::int64_t samples, std::int64_t global_batch, std::uint64_t seed, bool shuffle);
  std::int64_t global_batch() const { return global_batch_; }
  std::int64_t steps_per_epoch() const { return steps_per_epoch_; }
  std::int64_t epoch(std::int64_t step) const { return (step - 1) / steps_per_epoch_; }
  /// Sample number `index` (0 .. global_batch - 1) of optimizer step `step` (from 1).
  std::int64_t sample(std::int64_t step, std::int64_t index) const;

 private:
  std::int64_t samples_, global_batch_, steps_per_epoch_;
  std::uint64_t seed_;
  bool shuffle_;
};

}  // namespace llampi::data
