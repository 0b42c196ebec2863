// SPDX-License-Identifier: Apache-2.0
#include "llampi/health/side_work.hpp"

#include "llampi/comm/comm.hpp"
#include "llampi/core/clock.hpp"

namespace llampi::health {

void SideWork::begin(const char* what, const comm::World& world) {
  const std::lock_guard lock(mutex_);
  now_ = {what, now_.movement + 1, steady_seconds(), false};
  world_ = &world;
}

void SideWork::move() {
  const std::lock_guard lock(mutex_);
  ++now_.movement;
  now_.since = steady_seconds();
}

void SideWork::end() {
  const std::lock_guard lock(mutex_);
  now_ = {nullptr, now_.movement + 1, steady_seconds(), false};
  world_ = nullptr;
}

SideWork::Position SideWork::position() const {
  const std::lock_guard lock(mutex_);
  Position position = now_;
  position.waits = world_ != nullptr && world_->waits();
  return position;
}

}  // namespace llampi::health
