// Numbers that only rank 0 read from a file, or knows of one that it writes.
#pragma once

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "llampi/comm/comm.hpp"

namespace llampi {

/// Collective. Rank 0's values, on every rank.
template <class T>
std::vector<T> from_rank_0(World& world, const std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::string bytes =
      world.broadcast({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}, 0);
  std::vector<T> result(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

}  // namespace llampi
