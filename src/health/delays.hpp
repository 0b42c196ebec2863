// SPDX-License-Identifier: Apache-2.0
// When ranks send heartbeats and reports, so that not all of them do at once.
#pragma once

namespace llampi::health {

/// The first rank of a node receives at most so many heartbeats a second, so the others send theirs with a delay: heartbeat_delay().
inline constexpr int kSpeakersPerSecond = 256;
/// @param interval between two heartbeats of a rank
double heartbeat_delay(int local_rank, int local_ranks, double interval);

/// At most so many ranks a second write flight records, so a rank that is asked for a report waits before it answers: report_delay().
inline constexpr int kWritersPerSecond = 1024;
/// @param longest that a rank may wait, whatever their number
double report_delay(int rank, int ranks, double longest);

/// Seconds that this rank waits before it reports what is wrong, so that only one rank does.
double turn_of(int rank);

}  // namespace llampi::health
