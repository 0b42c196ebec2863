// SPDX-License-Identifier: Apache-2.0
// Saving while training goes on: on each rank a thread with a world of its own.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>

#include "llampi/comm/forward.hpp"

namespace llampi::checkpoint {

/// Runs one piece of work at a time, which may use all collectives of its world. The thread never waits for the
/// rank's other thread, so work that all ranks have started always completes.
class Background {
 public:
  /// Collective.
  explicit Background(comm::World& world);
  /// Waits for what is under way; a failure of it is lost.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// False where MPI cannot be called by several threads. Nothing can be started then.
  bool works() const { return world_ != nullptr; }
  /// Starts `work`, which returns the seconds to be told by finish(). Nothing may be under way.
  void start(std::function<double(comm::World&)> work);
  bool is_under_way() const { return under_way_.valid(); }
  /// Whether finish() would not wait.
  bool is_done() const { return is_done_within(std::chrono::seconds(0)); }
  bool is_done_within(std::chrono::duration<double> time) const;
  /// Whether it waits for what is under way on other ranks.
  bool waits() const;
  /// Waits for what is under way, and throws what it threw.
  double finish();
  /// Permanently abandons the work under way, without waiting: the job is about to be aborted, and other ranks might
  /// not take part.
  void abandon();

 private:
  std::unique_ptr<comm::World> world_;
  std::future<double> under_way_;  ///< destroyed first: waits
};

}  // namespace llampi::checkpoint
