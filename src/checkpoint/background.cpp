// SPDX-License-Identifier: Apache-2.0
#include "llampi/checkpoint/background.hpp"

#include "llampi/comm/comm.hpp"
#include "llampi/core/error.hpp"

namespace llampi::checkpoint {

Background::Background(comm::World& world) : world_(world.duplicate()) {}

Background::~Background() = default;

bool Background::waits() const { return world_->waits(); }

void Background::start(std::function<double(comm::World&)> work) {
  require(works() && !is_under_way(), "one work in the background at a time");
  under_way_ =
      std::async(std::launch::async, [world = world_.get(), work = std::move(work)] { return work(*world); });
}

bool Background::is_done_within(std::chrono::duration<double> time) const {
  return under_way_.wait_for(time) == std::future_status::ready;
}

void Background::abandon() {
  static_cast<void>(new std::future<double>(std::move(under_way_)));  // whose destructor would wait
  static_cast<void>(world_.release());
}

double Background::finish() { return under_way_.get(); }

}  // namespace llampi::checkpoint
