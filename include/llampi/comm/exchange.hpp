// Numbers, and structures of numbers, between all ranks.
#pragma once

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "llampi/comm/comm.hpp"

namespace llampi::comm {

template <class T>
std::string as_text(const std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <class T>
std::vector<T> from_text(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// Collective. Rank 0's values, on every rank.
template <class T>
std::vector<T> broadcast_values(World& world, const std::vector<T>& values) {
  return from_text<T>(world.broadcast(as_text(values), 0));
}

/// Collective. Every rank's values, by rank, on every rank.
template <class T>
std::vector<std::vector<T>> all_gather_values(World& world, const std::vector<T>& values) {
  std::vector<std::vector<T>> all;
  for (const auto& bytes : world.all_gather(as_text(values))) all.push_back(from_text<T>(bytes));
  return all;
}

/// Collective. On rank 0 all values, those of one rank after those of another; on the others nothing.
template <class T>
std::vector<T> gather_values(World& world, const std::vector<T>& values) {
  std::vector<T> all;
  for (const auto& bytes : world.gather(as_text(values), 0)) {
    const auto some = from_text<T>(bytes);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace llampi::comm
