// SPDX-License-Identifier: Apache-2.0
// What a second thread of this rank does in parallel with training, for the watchdog.
#pragma once

#include <cstdint>
#include <mutex>

#include "llampi/comm/forward.hpp"

namespace llampi::health {

class SideWork {
 public:
  struct Position {
    const char* what = nullptr;  ///< a literal; null: nothing is done
    std::uint64_t movement = 0;  ///< another number whenever something was done since
    double since = 0;            ///< of the last movement; steady_seconds()
    bool waits = false;          ///< for other ranks
  };

  // ---- the thread that works ----
  /// @param world in which it waits for other ranks; lives until end()
  void begin(const char* what, const comm::World& world);
  void move();
  void end();

  // ---- any thread ----
  Position position() const;

 private:
  mutable std::mutex mutex_;
  Position now_;
  const comm::World* world_ = nullptr;
};

/// Work from here to the end of the scope.
class SideWorkScope {
 public:
  SideWorkScope(SideWork& work, const char* what, const comm::World& world) : work_(work) {
    work_.begin(what, world);
  }
  ~SideWorkScope() { work_.end(); }
  SideWorkScope(const SideWorkScope&) = delete;
  SideWorkScope& operator=(const SideWorkScope&) = delete;

 private:
  SideWork& work_;
};

}  // namespace llampi::health
