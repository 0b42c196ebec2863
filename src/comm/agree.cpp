// SPDX-License-Identifier: Apache-2.0
#include "llampi/comm/agree.hpp"

#include <array>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/failure.hpp"
#include "llampi/comm/format_ranks.hpp"

namespace llampi::comm {

namespace {

// Two integers where all is well; texts travel only after a failure, and only one of them.
void agree_on(World& world, const std::function<void()>& work, bool is_of_nodes) {
  const Failure own = failure_of(world, work);
  // The lowest ranks are the largest here. Whether a user can do something about it goes first.
  const std::int64_t here = world.size() - world.rank();
  std::array<std::int64_t, 2> first = {own.by_user() ? here : 0, own.kind != Failure::Kind::none ? here : 0};
  world.max(std::span(first));
  if (first[1] == 0) return;
  const int rank = world.size() - static_cast<int>(first[0] > 0 ? first[0] : first[1]);
  auto failure = unpacked<Failure>(world.broadcast(world.rank() == rank ? packed(own) : "", rank));
  const bool differs = on_any_rank(world, !failure.alike(own));
  if (is_of_nodes && on_any_rank(world, own.kind == Failure::Kind::none)) failure.kind = Failure::Kind::other;
  failure.rethrow(differs ? format_rank(rank, failure.host) : "");
}

}  // namespace

void agree(World& world, const std::function<void()>& work) { agree_on(world, work, false); }

void agree_on_nodes(World& world, const std::function<void()>& work) { agree_on(world, work, true); }

}  // namespace llampi::comm
