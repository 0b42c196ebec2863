// SPDX-License-Identifier: Apache-2.0
#include "llampi/checkpoint/background.hpp"

#include "llampi/comm/comm.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/leak.hpp"

namespace llampi::checkpoint {

Background::Background(comm::World& world) : world_(world.duplicate()) {}

Background::~Background() = default;

bool Background::waits() const { return world_->waits(); }

void Background::start(std::function<double(comm::World&)> work) {
  require(works() && !is_under_way(), "one work in the background at a time");
  const auto task = [world = world_.get(), work = std::move(work)] { return work(*world); };
  under_way_ =
      std::async(std::launch::async | std::launch::deferred, task);  // a copy, as libstdc++ may try both
  // Where the system has no thread to give at this moment, this one does the work, as other ranks wait for it.
  if (under_way_.wait_for(std::chrono::seconds(0)) == std::future_status::deferred) under_way_.wait();
}

bool Background::is_done_within(std::chrono::duration<double> time) const {
  return under_way_.wait_for(time) == std::future_status::ready;
}

void Background::abandon() {
  leak(std::move(under_way_));  // its destructor would wait for the thread
  leak(std::move(world_));      // which the thread uses
}

double Background::finish() { return under_way_.get(); }

}  // namespace llampi::checkpoint
