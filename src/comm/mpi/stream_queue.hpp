// SPDX-License-Identifier: Apache-2.0
// Collectives in flight: what each of them does next, in which order they start, and who moves them on.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "comm/mpi/handles.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::comm {

/// A part of a collective: requests to MPI, then arithmetic on what has arrived. Either may be empty.
struct Step {
  std::function<void(Requests&)> start;
  std::function<void()> finish;
};

/// A collective in flight: steps, one after another.
class PendingCollective {
 public:
  /// @param communicator what the steps use; kept until they are done. None if they need no other rank.
  PendingCollective(std::vector<Step> steps, std::shared_ptr<Communicator> communicator)
      : steps_(std::move(steps)), communicator_(std::move(communicator)) {}
  /// Given up if it is not done: MPI still uses the communicator, which is then never freed.
  ~PendingCollective();
  PendingCollective(const PendingCollective&) = delete;
  PendingCollective& operator=(const PendingCollective&) = delete;

  /// Goes on as far as it can without waiting; true when it is done. After an exception it counts as done.
  bool advance();
  bool done() const { return step_ == steps_.size(); }

 private:
  bool advance_step();

  std::vector<Step> steps_;
  std::shared_ptr<Communicator> communicator_;
  std::size_t step_ = 0;
  bool started_ = false;  // of the current step
  Requests requests_;
};

/// The collectives of all groups on one stream: they run in the order in which they were issued, one at a
/// time. What one writes the next may read, and they may share a workspace, whatever their groups.
class StreamQueue {
 public:
  void issue(const std::shared_ptr<PendingCollective>& collective);
  /// What is issued here from now on starts after a collective of another queue, which that one moves on.
  void follow(std::shared_ptr<const PendingCollective> collective);
  /// Moves the oldest collective on, and starts the next when it is done.
  void advance();

 private:
  struct Entry {
    std::shared_ptr<PendingCollective> collective;  ///< null: of another queue
    /// Nothing behind this entry starts before that is done.
    std::shared_ptr<const PendingCollective> follows{};
  };
  std::deque<Entry> queue_;
};

/// The queues of the process. Whoever waits moves every queue on: a rank that waits for one collective would
/// otherwise hold up another rank that waits for the next step of a second one.
class Progress {
 public:
  /// @param pause between looks at requests: for a thread beside the one that computes
  /// @param waits the flag of another one in the same thread, whose waits() tells of this one's then
  explicit Progress(std::chrono::microseconds pause = {},
                    std::shared_ptr<std::atomic<bool>> waits = std::make_shared<std::atomic<bool>>(false))
      : pause_(pause), waits_(std::move(waits)) {}
  const std::shared_ptr<std::atomic<bool>>& waits_flag() const { return waits_; }
  StreamQueue& queue(device::Stream stream) { return queues_[stream.index()]; }
  void advance_all();
  void wait(const PendingCollective& collective);
  void wait(Requests& requests);
  /// For destructors while an exception unwinds: other ranks may never come, so all such waits together end
  /// after a few seconds. False if the collective was given up.
  bool wait_a_little(const PendingCollective& collective);
  bool wait_a_little(Requests& requests);
  /// Whether a collective was given up: MPI still holds its buffers and cannot be finalised.
  bool gave_up() const { return gave_up_; }
  /// Whether somebody waits. From any thread.
  bool waits() const { return waits_->load(std::memory_order_relaxed); }

 private:
  /// While it exists somebody waits.
  class Wait {
   public:
    explicit Wait(std::atomic<bool>& flag) : flag_(flag) { flag_.store(true, std::memory_order_relaxed); }
    ~Wait() { flag_.store(false, std::memory_order_relaxed); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    std::atomic<bool>& flag_;
  };

  template <class Done>
  bool wait_a_little_until(const Done& done);

  const std::chrono::microseconds pause_;
  std::array<StreamQueue, device::kStreams> queues_;
  bool gave_up_ = false;
  std::shared_ptr<std::atomic<bool>> waits_;
};

/// Issues a collective on the stream's queue.
/// @param communicator what the steps use; none if they need no other rank
std::unique_ptr<Work> issue(std::shared_ptr<Progress> progress, device::Stream stream,
                            std::vector<Step> steps, std::shared_ptr<Communicator> communicator);

}  // namespace llampi::comm
