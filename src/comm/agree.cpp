// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/failure.hpp"

namespace llampi::comm {
namespace {

/// "rank 1 on host", unless all ranks failed alike.
std::string where(const std::vector<Failure>& failures, std::size_t rank) {
  const Failure& failure = failures[rank];
  const bool all_alike = std::all_of(failures.begin(), failures.end(),
                                     [&](const Failure& other) { return other.alike(failure); });
  return all_alike ? "" : fmt::format("rank {} on {}", rank, failure.host);
}

}  // namespace

void agree(World& world, const std::function<void()>& work) {
  const auto failures = all_gather_value(world, failure_of(world, work));
  const auto throw_first = [&](const auto& counts) {
    const auto first = std::find_if(failures.begin(), failures.end(), counts);
    if (first == failures.end()) return;
    first->rethrow(where(failures, static_cast<std::size_t>(first - failures.begin())));
  };
  throw_first([](const Failure& failure) { return failure.by_user(); });
  throw_first([](const Failure& failure) { return failure.kind != Failure::Kind::none; });
}

}  // namespace llampi::comm
