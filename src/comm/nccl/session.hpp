// SPDX-License-Identifier: Apache-2.0
// What all communicators of NCCL of this process share: they fail together.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/nccl/library.hpp"

namespace llampi::comm::nccl {

/// A communicator as NCCL has it; null when it is given back or aborted. Only the session looks inside.
struct Handle {
  std::unique_ptr<LibraryCommunicator> communicator;
  std::string name;   ///< of what, for messages
  std::string label;  ///< what NCCL calls it in its log and to profilers
};

/// Ends a wait. Time in which the process was suspended does not count.
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds patience) : left_(patience) {}
  bool passed() const { return left_ < left_.zero(); }
  /// Lets others run for a moment; after many times for a longer one.
  void pause();

 private:
  using Clock = std::chrono::steady_clock;
  Clock::duration left_;
  Clock::time_point seen_ = Clock::now();
  int pauses_ = 0;
};

/// Made with std::make_shared. Calls of NCCL pass through here one at a time, because another thread may
/// abort.
class Session : public std::enable_shared_from_this<Session> {
 public:
  /// @param gpu of this process
  /// @param who "rank 3 on node5"
  /// @param patience how long NCCL may stay at one call
  Session(int gpu, std::string who, std::chrono::milliseconds patience)
      : gpu_(gpu), who_(std::move(who)), patience_(patience) {}

  std::chrono::milliseconds patience() const { return patience_; }
  bool aborted() const { return aborted_; }

  /// Runs `call` on the handle. If it then holds a communicator, abort() aborts that too. Returns when the call returns, though NCCL
  /// may still be working on it.
  /// @throws Error if all communicators were aborted before
  Result call(const std::shared_ptr<Handle>& handle,
              const std::function<Result(std::unique_ptr<LibraryCommunicator>&)>& call);
  /// In progress while NCCL is at the last call. Later what happened since, a failure if any.
  Result state(const std::shared_ptr<Handle>& handle);
  /// Waits until NCCL is done with a call that returned `result`.
  /// @throws Error, after fail(), if it failed or took too long
  void settle(const std::shared_ptr<Handle>& handle, Result result, const std::string& what);

  /// A window of each communicator that there is: LibraryCommunicator::open_window(). Collective, as closing them is, which does
  /// nothing once all are aborted.
  /// @returns whether each of them has one
  bool open_windows(void* data, std::size_t bytes);
  void close_windows(void* data);
  /// @throws Error, after fail(), if something went wrong in any communicator
  void check();
  /// NCCL's words for an error, the last ones that it wrote included.
  std::string reason(const Result& result, const std::shared_ptr<Handle>& handle);
  /// Aborts all communicators. @throws Error: `what` and by whom it was seen
  [[noreturn]] void fail(const std::string& what);
  /// Aborts all communicators, so that no kernel waits for other ranks, and waits for that a short time: NCCL
  /// may itself wait here. From any thread; only the first time does anything.
  void abort();

 private:
  void require_alive() const;
  std::vector<std::shared_ptr<Handle>> open_handles();

  const int gpu_;
  const std::string who_;
  const std::chrono::milliseconds patience_;
  std::atomic<bool> aborted_ = false;
  std::string failure_;  ///< the first; of the thread that uses the world
  std::mutex mutex_;     ///< of what follows, and during calls
  std::vector<std::shared_ptr<Handle>> open_;
};

}  // namespace llampi::comm::nccl
