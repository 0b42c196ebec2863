// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: every number is a pure function of (seed, purpose, index), so that it does
// not depend on how many ranks there are, which of them draws it, or what was drawn before.
//
// Philox4x32-10: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1,
// 2, 3", SC'11, https://doi.org/10.1145/2063384.2063405
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace llampi {

/// One block of Philox4x32-10.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

/// A stream of random numbers for one purpose ("init model.norm.weight", "shuffle epoch 3"), addressed by
/// index.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::string_view purpose);

  /// 64 random bits.
  std::uint64_t bits(std::uint64_t index) const;
  /// Standard normal, standard_normal() of normal.hpp: the same bits on any machine.
  double normal(std::uint64_t index) const;

  /// Philox's key, its lower word first.
  std::uint64_t key() const { return key_; }
  /// The upper half of Philox's counter; the lower is the index.
  std::uint64_t purpose() const { return purpose_; }

 private:
  std::array<std::uint32_t, 4> block(std::uint64_t index) const;

  std::uint64_t key_, purpose_;
};

}  // namespace llampi
