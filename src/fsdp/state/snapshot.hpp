// SPDX-License-Identifier: Apache-2.0
// A copy of the state in host memory, made while training goes on.
#pragma once

#include <utility>

#include "fsdp/state/views.hpp"

namespace llampi::fsdp {

class Snapshot {
 public:
  /// Its room is in use from now on.
  Snapshot(device::Device& device, const CompiledModel& compiled, const StateViews& views, Arenas& arenas);

  /// Issues the copies, after all that was issued on the streams that write state.
  void take(const StateViews& views);
  /// Until the copies are complete. Any thread may wait, as long as no other snapshot is taken.
  void wait() const { device_.wait_in_any_thread(copied_); }
  /// No update has been issued since the last one was taken.
  bool pending() const { return pending_; }
  /// To be called before an update is issued: the first in a step to write anything that is copied. What else
  /// does comes after it.
  void hold_back(device::Stream update) {
    if (std::exchange(pending_, false)) device_.wait(update, copied_);
  }

 private:
  device::Device& device_;
  device::Event copied_;
  bool pending_ = false;
};

}  // namespace llampi::fsdp
