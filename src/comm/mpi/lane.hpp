// Collectives in flight: what each of them does next, in which order they start, and who moves them on.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "comm/mpi/handles.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi {

/// A part of a collective: requests to MPI, then arithmetic on what has arrived. Either may be empty.
struct Step {
  std::function<void(Requests&)> start;
  std::function<void()> finish;
};

/// A collective: steps, one after another.
class Operation {
 public:
  explicit Operation(std::vector<Step> steps) : steps_(std::move(steps)) {}

  /// Goes on as far as it can without waiting; true when it is done. After an exception it counts as done.
  bool advance();
  bool done() const { return step_ == steps_.size(); }

 private:
  bool advance_step();

  std::vector<Step> steps_;
  std::size_t step_ = 0;
  bool started_ = false;  // of the current step
  Requests requests_;
};

class Lane;

/// All lanes of the process. Whoever waits moves every lane on: a rank that waits for one collective would
/// otherwise hold up another rank that waits for the next step of a second one.
class Progress {
 public:
  void advance_all();
  void wait(const Operation& operation);
  void wait(Requests& requests);
  /// For destructors while an exception unwinds: other ranks may never come, so all such waits together end
  /// after a few seconds. False if the operation was given up.
  bool wait_a_little(const Operation& operation);
  /// Whether an operation was given up: MPI still holds its buffers and cannot be finalised.
  bool gave_up() const { return gave_up_; }

 private:
  friend class Lane;
  std::vector<Lane*> lanes_;
  bool gave_up_ = false;
};

/// The collectives of one group on one stream: they run in the order in which they were issued, one at a
/// time, on a communicator of their own.
class Lane {
 public:
  Lane(std::shared_ptr<Progress> progress, Communicator communicator);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  MPI_Comm communicator() const { return communicator_.get(); }
  Progress& progress() { return *progress_; }
  void issue(std::shared_ptr<Operation> operation);
  /// Moves the oldest operation on, and starts the next when it is done.
  void advance();

 private:
  std::shared_ptr<Progress> progress_;
  Communicator communicator_;
  std::deque<std::shared_ptr<Operation>> queue_;
};

/// Issues the operation on the lane.
std::unique_ptr<Work> issue(std::shared_ptr<Lane> lane, std::vector<Step> steps);
/// A collective that needs no other rank: done when this returns.
std::unique_ptr<Work> done_work();

}  // namespace llampi
