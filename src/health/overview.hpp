// SPDX-License-Identifier: Apache-2.0
// The state of many ranks, summed up for judging the job. Its size does not grow with the number of ranks, only with the number
// of those that are absent, unlinked or different.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <tuple>
#include <vector>

#include "health/heartbeat.hpp"

namespace llampi::health {

/// A rank of which nothing has been heard for a while, whose process has ended, or that ended its training.
struct Absence {
  std::int32_t rank = 0;
  bool exited = false;  ///< its process has ended
  bool left = false;    ///< it ended its training after an error
  double silent_seconds = 0;
};

/// An operation of which all ranks have told, as FlightMark.
struct CommonMark {
  struct Part {
    std::uint64_t hash = 0;
    std::vector<std::int32_t> ranks;  ///< that have this hash; empty where all have the same
    auto members() { return std::tie(hash, ranks); }
  };
  std::uint64_t sequence = 0;
  std::vector<Part> parts;
  auto members() { return std::tie(sequence, parts); }
};

struct Overview {
  double stalled_seconds = std::numeric_limits<double>::infinity();  ///< since any of the ranks moved
  double side_work_stalled_seconds = 0;  ///< the longest that a second thread stands still that should not
  bool phase = false;                    ///< some rank is in a phase
  std::vector<CommonMark> marks;
  std::vector<Absence> absent;
  std::vector<std::int32_t> unlinked;  ///< to which a connection is missing that would show their exit

  auto members() {
    return std::tie(stalled_seconds, side_work_stalled_seconds, phase, marks, absent, unlinked);
  }
};

/// The overview of a single rank.
/// @param stalled_seconds since the rank moved
/// @param side_work_stalled_seconds since its second thread moved, had nothing to do, or waited for other ranks
Overview overview_of(const Heartbeat& heartbeat, double stalled_seconds, double side_work_stalled_seconds);

/// The same overview, `seconds` later, if nothing has happened since.
Overview aged(Overview overview, double seconds);

/// An overview and the ranks that it covers. ranks() is called only if parts differ.
struct OverviewPart {
  Overview overview;
  std::function<std::vector<int>()> ranks;
};
Overview combine(std::span<const OverviewPart> parts);

}  // namespace llampi::health
