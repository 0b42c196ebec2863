// SPDX-License-Identifier: Apache-2.0
// Numbers that every rank can compute for every other rank.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "llampi/core/tensor.hpp"

namespace llampi::test {

/// Elements of the tensors that collectives are tested with: none, fewer than ranks, many.
inline constexpr std::array<std::int64_t, 5> kCollectiveSizes = {0, 1, 5, 1000, 65537};

/// Element `index` of rank `rank`. Floating-point numbers spread over 20 binary orders of magnitude and both
/// signs, so that the last bits of a sum depend on its order.
template <class T>
T value(int rank, std::int64_t index, std::uint64_t salt = 0) {
  std::uint64_t bits =
      (static_cast<std::uint64_t>(index) * 131 + static_cast<std::uint64_t>(rank) + 1) * 0x9E3779B97F4A7C15U +
      salt;
  bits = (bits ^ (bits >> 31)) * 0xBF58476D1CE4E5B9U;
  bits ^= bits >> 29;
  if constexpr (std::is_floating_point_v<T>) {
    const double fraction = static_cast<double>(static_cast<std::int64_t>(bits) >> 11) * 0x1p-52;
    return static_cast<T>(std::ldexp(fraction, static_cast<int>(bits % 20)));
  } else {
    return static_cast<T>(bits % 200'000'001) - 100'000'000;  // the sum of 16 fits into 32 bits
  }
}

template <class T>
std::vector<T> values(int rank, std::int64_t elements, std::uint64_t salt = 0) {
  std::vector<T> result;
  for (std::int64_t i = 0; i < elements; ++i) result.push_back(value<T>(rank, i, salt));
  return result;
}

/// Pairs of neighbours are added until one number is left, the last of an odd number as it is.
template <class T>
T tree_sum(std::vector<T> sums) {
  while (sums.size() > 1) {
    const std::size_t pairs = sums.size() / 2;
    for (std::size_t i = 0; i < pairs; ++i) sums[i] = static_cast<T>(sums[2 * i] + sums[2 * i + 1]);
    if (sums.size() % 2 == 1) sums[pairs] = sums.back();
    sums.resize(pairs + sums.size() % 2);
  }
  return sums.front();
}

template <class T>
T tree_sum(const std::vector<int>& ranks, std::int64_t index, std::uint64_t salt = 0) {
  std::vector<T> terms;
  for (const int rank : ranks) terms.push_back(value<T>(rank, index, salt));
  return tree_sum(std::move(terms));
}

template <class T>
Tensor row(std::vector<T>& elements) {
  return tensor(elements.data(), 1, static_cast<std::int64_t>(elements.size()));
}

inline Tensor workspace_row(std::vector<std::int64_t>& storage, std::int64_t bytes) {
  storage.assign(static_cast<std::size_t>((bytes + 7) / 8), -1);
  return row(storage);
}

inline std::vector<int> first_ranks(int count) {
  std::vector<int> ranks;
  for (int rank = 0; rank < count; ++rank) ranks.push_back(rank);
  return ranks;
}

}  // namespace llampi::test
