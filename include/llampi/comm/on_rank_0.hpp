// SPDX-License-Identifier: Apache-2.0
// What rank 0 does and finds out for all ranks: files and variables may look different from other nodes.
#pragma once

#include <functional>
#include <string>
#include <type_traits>

#include "llampi/comm/exchange.hpp"
#include "llampi/comm/forward.hpp"

namespace llampi::comm {

/// Rank 0 does the work, and the others wait until it is done. Collective.
/// @throws on every rank the same exception that `work` throws: a UserError unchanged, since a user's mistake
///   concerns all ranks, and anything else as a CommonError with rank and host
void on_rank_0(World& world, const std::function<void()>& work);

/// The bytes that `work` returns on rank 0. Collective. @throws likewise
std::string bytes_from_rank_0(World& world, const std::function<std::string()>& work);

/// What `work` returns on rank 0, of a type that travels (see exchange.hpp). Collective. @throws likewise
template <class Work>
auto from_rank_0(World& world, const Work& work) {
  using Result = std::decay_t<std::invoke_result_t<const Work&>>;
  return unpacked<Result>(bytes_from_rank_0(world, [&] { return packed<Result>(work()); }));
}

}  // namespace llampi::comm
