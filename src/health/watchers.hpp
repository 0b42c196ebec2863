// SPDX-License-Identifier: Apache-2.0
// Which ranks watch which processes, and when ranks speak.
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

/// Whose process `rank` watches: the next rank on its machine, around; none if there is none that can be seen.
/// A pointer into `node`.
const RankProcess* neighbour_of(const std::vector<RankProcess>& node, int rank);
/// Whom it watches when `neighbour` has ended: the next one after that, whether it has ended or not; null: none.
const RankProcess* neighbour_after(const std::vector<RankProcess>& node, int rank, int neighbour);

/// The ranks of a node of which no process that is watched from the node's first rank on sees the end: the first of each other
/// machine.
std::vector<int> unseen_from_first(const std::vector<RankProcess>& node);

/// By which the heartbeats of a rank come after those of the first of its node, which hears so many a second.
inline constexpr int kSpeakersPerSecond = 256;
/// @param interval between two heartbeats of a rank
double speaking_delay(int local_rank, int local_ranks, double interval);

/// Between being asked for a report and giving it, as a file and as a message: so many ranks a second write files.
inline constexpr int kWritersPerSecond = 1024;
/// @param longest that a rank may wait, whatever their number
double report_delay(int rank, int ranks, double longest);

/// By which a rank that could say what is wrong waits for those before it, so that one of them says it.
double turn_of(int rank);

}  // namespace llampi::health
