// SPDX-License-Identifier: Apache-2.0
// The processes of the ranks of a node, and which rank watches which of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llampi/comm/forward.hpp"

namespace llampi::health {

/// A rank of this node, as others need to know it to watch it.
struct RankProcess {
  int rank = 0;
  std::string machine;  ///< whose processes see each other; empty: not known
  std::int64_t pid = 0;
};

/// Of the ranks of this rank's node, by local rank. Collective.
std::vector<RankProcess> exchange_processes(comm::World& world);

/// Their hosts. Collective.
std::vector<std::string> exchange_hosts(comm::World& world, const std::vector<int>& ranks);

/// The rank whose process `rank` watches: the next one on its machine, after the last one the first. Null if no process can be
/// seen. Points into `node`.
const RankProcess* neighbour_of(const std::vector<RankProcess>& node, int rank);
/// Whom it watches when `neighbour` has ended: the next one after that, whether it has ended or not; null: none.
const RankProcess* neighbour_after(const std::vector<RankProcess>& node, int rank, int neighbour);

/// Ranks of a node whose exit the chain of watching processes that begins at its first rank does not show, because they are in other
/// process namespaces (containers, say): of each namespace its first rank, which sees the others, and ranks of unknown namespaces.
std::vector<int> unseen_from_first(const std::vector<RankProcess>& node);

}  // namespace llampi::health
