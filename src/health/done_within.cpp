// SPDX-License-Identifier: Apache-2.0
#include "llampi/health/done_within.hpp"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace llampi::health {

Done done_within(double seconds, std::function<void()> work) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool ended = false, failed = false;
  };
  std::shared_ptr<State> state;
  try {
    state = std::make_shared<State>();
    std::thread([state, work = std::move(work)] {
      bool failed = false;
      try {
        work();
      } catch (...) {  // the caller is told, and the job ends anyway
        failed = true;
      }
      const std::lock_guard lock(state->mutex);
      state->ended = true;
      state->failed = failed;
      state->changed.notify_all();
    }).detach();
  } catch (const std::exception&) {  // std::system_error, or std::bad_alloc
    return Done::not_begun;
  }
  std::unique_lock lock(state->mutex);
  const bool in_time =
      state->changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return state->ended; });
  return in_time && !state->failed ? Done::yes : Done::no;
}

}  // namespace llampi::health
