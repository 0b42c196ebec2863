// SPDX-License-Identifier: Apache-2.0
#include "health/own_progress.hpp"

#include <algorithm>
#include <utility>

#include "llampi/comm/comm.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/process.hpp"

namespace llampi::health {

OwnProgress::OwnProgress(const comm::World& world, const FlightRecord& record,
                         std::shared_ptr<const SideWork> side_work)
    : world_(world),
      record_(record),
      side_work_(std::move(side_work)),
      moved_(steady_seconds()),
      side_work_moved_(moved_) {}

Standing OwnProgress::look(int peers, double now) {
  const auto side_work = side_work_ ? side_work_->position() : SideWork::Position{};
  const auto heartbeat = heartbeat_of(record_, io_bytes(), peers, world_.waits(), side_work);
  if (heartbeat.movement != last_.movement) moved_ = now;
  if (heartbeat.side_work_movement != last_.side_work_movement || heartbeat.side_work.view().empty() ||
      heartbeat.side_work_waits)
    side_work_moved_ = now;
  last_ = heartbeat;
  return {heartbeat, std::max(0.0, now - moved_), std::max(0.0, now - side_work_moved_)};
}

void OwnProgress::forget(double pause, double now) {
  moved_ = std::min(moved_ + pause, now);
  side_work_moved_ = std::min(side_work_moved_ + pause, now);
}

}  // namespace llampi::health
