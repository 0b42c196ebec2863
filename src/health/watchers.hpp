// SPDX-License-Identifier: Apache-2.0
// Which ranks watch which.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llampi/comm/forward.hpp"

namespace llampi::health {

/// A rank, as others need to know it to watch it.
struct RankProcess {
  std::string host;
  std::string machine;  ///< whose processes see each other; empty: not known
  std::int64_t pid = 0;
  int node = 0;
};

/// By rank. Collective.
std::vector<RankProcess> exchange_processes(comm::World& world);

/// Who is told by all ranks: rank 0 and, with more ranks, the first one of another node, or rank 1.
std::vector<int> choose_monitors(const std::vector<RankProcess>& ranks);

/// Who speaks to a monitor when, so that it hears no more than kSpeakers ranks within kSpeakingSeconds, however many
/// there are.
inline constexpr int kSpeakers = 256;
inline constexpr double kSpeakingSeconds = 1;
/// Between two heartbeats of a rank: `seconds` or, with more ranks, longer, but no longer than `longest`.
double heartbeat_interval(int ranks, double seconds, double longest);
/// By which the heartbeats of this rank come after those of rank 0: spread over the interval where there are many.
double heartbeat_delay(int rank, int ranks, double interval);
/// Between being asked for a report and giving it, as a file and as a message: kSpeakers ranks at a time.
double report_delay(int rank);

/// Whose process `rank` watches: the next rank on its machine, around; -1 if there is none that can be seen.
int neighbour_of(const std::vector<RankProcess>& ranks, int rank);
/// Whom it watches when `neighbour` has ended: the next one after that, whether it has ended or not; -1:
/// none.
int neighbour_after(const std::vector<RankProcess>& ranks, int rank, int neighbour);

}  // namespace llampi::health
