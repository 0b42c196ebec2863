// SPDX-License-Identifier: Apache-2.0
#include "llampi/comm/exchange.hpp"

#include <algorithm>
#include <functional>

#include "llampi/comm/comm.hpp"

namespace llampi::comm {
namespace {

/// One value of each rank, by World::max() or World::sum().
template <class T>
T reduced(World& world, T value, void (World::*reduce)(std::span<T>)) {
  (world.*reduce)(std::span(&value, 1));
  return value;
}

}  // namespace

std::string broadcast_bytes_of_rank_0(World& world, const std::string& bytes) {
  return world.broadcast(bytes, 0);
}

std::vector<std::string> all_gather_bytes(World& world, const std::string& bytes) {
  return world.all_gather(bytes);
}

std::vector<std::string> gather_bytes_on_rank_0(World& world, const std::string& bytes) {
  return world.gather(bytes, 0);
}

std::int64_t max_over_ranks(World& world, std::int64_t value) { return reduced(world, value, &World::max); }
double max_over_ranks(World& world, double value) { return reduced(world, value, &World::max); }
std::int64_t sum_over_ranks(World& world, std::int64_t value) { return reduced(world, value, &World::sum); }
double sum_over_ranks(World& world, double value) { return reduced(world, value, &World::sum); }

void min_over_ranks(World& world, std::span<std::int64_t> values) {
  const auto negate = [&] { std::ranges::transform(values, values.begin(), std::negate<>()); };
  negate();
  world.max(values);
  negate();
}

bool on_any_rank(World& world, bool here) { return max_over_ranks(world, std::int64_t{here ? 1 : 0}) != 0; }

void reduce_each(World& world, const std::vector<std::int64_t*>& values, ReduceOp op) {
  std::vector<std::int64_t> reduced;
  reduced.reserve(values.size());
  for (const auto* value : values) reduced.push_back(*value);
  if (op == ReduceOp::sum) {
    world.sum(reduced);
  } else {
    world.max(reduced);
  }
  for (std::size_t i = 0; i < values.size(); ++i) *values[i] = reduced[i];
}

}  // namespace llampi::comm
