// SPDX-License-Identifier: Apache-2.0
// How many ranks stand, in few words: what judging a job needs to know of them. As large for a thousand ranks as for one,
// but for those that are not well.
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
  bool gone = false;  ///< its process has ended
  bool left = false;  ///< it ended its training after an error
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
  double still_seconds = std::numeric_limits<double>::infinity();  ///< since any of the ranks moved
  double side_seconds = 0;  ///< the longest that a second thread stands still that should not
  bool phase = false;       ///< some rank is in a phase
  std::vector<CommonMark> marks;
  std::vector<Absence> absent;
  std::vector<std::int32_t> unlinked;  ///< whose end the ranks that should be connected with them do not see

  auto members() { return std::tie(still_seconds, side_seconds, phase, marks, absent, unlinked); }
};

/// Of one rank.
/// @param still_seconds, side_seconds since it moved, and since its second thread moved or had no reason to
Overview overview_of(const Heartbeat& heartbeat, double still_seconds, double side_seconds);

/// As it would be told later, had nothing happened since.
Overview aged(Overview overview, double seconds);

/// An overview and the ranks of which it is, asked for only where they differ.
struct OverviewPart {
  Overview overview;
  std::function<std::vector<int>()> ranks;
};
Overview combine(std::span<const OverviewPart> parts);

}  // namespace llampi::health
