// SPDX-License-Identifier: Apache-2.0
#include "llampi/comm/on_rank_0.hpp"

#include "llampi/comm/comm.hpp"
#include "llampi/comm/failure.hpp"

namespace llampi::comm {

void on_rank_0(World& world, const std::function<void()>& work) {
  bytes_from_rank_0(world, [&] {
    work();
    return std::string();
  });
}

std::string bytes_from_rank_0(World& world, const std::function<std::string()>& work) {
  struct Answer {
    Failure failure;
    std::string bytes;
    auto members() { return std::tie(failure, bytes); }
  };
  Answer answer;
  if (world.rank() == 0) answer.failure = failure_of(world, [&] { answer.bytes = work(); });
  answer = broadcast_value(world, answer);
  const Failure& failure = answer.failure;
  if (failure.kind == Failure::Kind::none) return answer.bytes;
  const bool tells_where = !failure.by_user() && world.size() > 1;
  failure.rethrow(tells_where ? "rank 0 on " + failure.host : "");
}

}  // namespace llampi::comm
