// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "health/heartbeat.hpp"
#include "llampi/comm/forward.hpp"

namespace llampi::health {

/// What a rank knows of itself.
struct Standing {
  Heartbeat heartbeat;
  double stalled_seconds = 0;  ///< since it moved
  double side_work_stalled_seconds =
      0;  ///< since its second thread moved, had nothing to do, or waited for other ranks
};

/// Of this rank: where it stands, and since when.
class OwnProgress {
 public:
  /// World and record must outlive it. @param side_work may be null
  OwnProgress(const comm::World& world, const FlightRecord& record,
              std::shared_ptr<const SideWork> side_work);

  /// @param peers as for heartbeat_of()
  Standing look(int peers, double now);
  /// The process was suspended for so long, and could not move.
  void forget(double pause, double now);

  const Heartbeat& last() const { return last_; }
  double stalled_seconds(double now) const { return now - moved_; }  ///< when it was last looked at

 private:
  const comm::World& world_;
  const FlightRecord& record_;
  std::shared_ptr<const SideWork> side_work_;
  Heartbeat last_;
  double moved_, side_work_moved_;  ///< steady_seconds()
};

}  // namespace llampi::health
