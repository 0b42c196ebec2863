// SPDX-License-Identifier: Apache-2.0
// What rank 0 does and finds out for all ranks: files and variables may look different from other nodes.
// Private to the library.
#pragma once

#include <type_traits>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/failure.hpp"

namespace llampi::comm {

/// Throws on every rank what failed on rank 0. A user's mistake is everybody's; of anything else rank and
/// host are told.
inline void throw_failure_of_rank_0(const World& world, const Failure& failure) {
  if (failure.kind == Failure::Kind::none) return;
  const bool tells_where = !failure.by_user() && world.size() > 1;
  failure.rethrow(tells_where ? "rank 0 on " + failure.host : "");
}

/// Rank 0 does the work, and the others wait until it is done. Collective.
/// @throws on every rank alike, UserError or CommonError, what `work` throws
template <class Work>
void on_rank_0(World& world, const Work& work) {
  Failure failure;
  if (world.rank() == 0) failure = failure_of(world, work);
  throw_failure_of_rank_0(world, broadcast_value(world, failure));
}

/// What `work` returns on rank 0, of a type that travels (see exchange.hpp). Collective. @throws likewise
template <class Work>
auto from_rank_0(World& world, const Work& work) {
  using Result = std::decay_t<std::invoke_result_t<const Work&>>;
  struct Answer {
    Failure failure;
    Result result;
    auto members() { return std::tie(failure, result); }
  };
  Answer answer{};
  if (world.rank() == 0) answer.failure = failure_of(world, [&] { answer.result = work(); });
  answer = broadcast_value(world, answer);
  throw_failure_of_rank_0(world, answer.failure);
  return answer.result;
}

}  // namespace llampi::comm
