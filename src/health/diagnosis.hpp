// SPDX-License-Identifier: Apache-2.0
// What is wrong with a job, judged by what its ranks say of themselves, and how a person is told.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "health/heartbeat.hpp"
#include "health/overview.hpp"
#include "llampi/comm/format_ranks.hpp"

namespace llampi::health {

/// What is known of a rank.
struct WatchedRank {
  std::string host;
  Heartbeat heartbeat;         ///< the last
  double silent_seconds = 0;   ///< since it came
  double stalled_seconds = 0;  ///< since one came that differed in `movement`
  double side_work_stalled_seconds =
      0;                ///< since its second thread moved, had nothing to do, or waited for other ranks
  bool exited = false;  ///< its process has ended
  bool left = false;    ///< it ended its training after an error
  char state = 0;       ///< of its process, as /proc has it (T: stopped, D: waits for a disk); 0: unknown
  std::shared_ptr<const FlightReport>
      report;  ///< kilobytes, which a rank that has not reported does not take
  decltype(Heartbeat::marks) marks_at_alarm{};  ///< what it had told of when trouble was found
};

enum class Trouble : std::uint8_t {
  none,
  exited,          ///< a process has ended
  unresponsive,    ///< no heartbeat comes from a rank any more
  side_work,       ///< the second thread of a rank hangs, whatever training does
  stalled,         ///< no rank makes progress
  desynchronized,  ///< ranks do different things
};

struct Limits {
  double seconds = 0;        ///< without a word, or without movement
  double phase_seconds = 0;  ///< without movement while a rank is in a phase, or of a second thread
  double step_seconds = 0;   ///< without movement at least, in a phase or not: what allow_steps_of() said
};

/// The first that applies, of a job with at least one rank. A job is stalled when no rank moves: one that waits
/// for a rank that reads weights, say, is not.
Trouble judge(const Overview& of_all, const Limits& limits);
Trouble judge(std::span<const WatchedRank> ranks, const Limits& limits);

/// The ranks that are to blame, and why, one line; then where they and the others stand. Whoever has not
/// sent a report was asked for one in vain; of a rank without a host nothing is known. `folder`: of the records. Ranks that
/// could not write theirs are named.
std::string summary(std::span<const WatchedRank> ranks, Trouble trouble, const Limits& limits,
                    const std::string& folder);

/// "the record of ranks 0-2 is in FOLDER", or "the record of rank 3 was not written to FOLDER".
std::string place_of_records(const std::vector<int>& ranks, bool written, const std::string& folder);

/// "step 12, micro-batch 0: waits for other ranks in reduce #1236 of model.layers.3 (1.50 MiB)".
std::string describe(const Heartbeat& heartbeat);

}  // namespace llampi::health
