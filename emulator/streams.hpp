// SPDX-License-Identifier: Apache-2.0
// Streams as queues of functions, and the limits of a launch.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "emulator/control.hpp"
#include "llampi/core/clock.hpp"

namespace llampi::emulator {

class Capture;

/// A place in a stream's order, which is reached when everything before it is done.
struct Point {
  explicit Point(CUstream_st* of, std::shared_ptr<Capture> in = {}) : stream(of), capture(std::move(in)) {}
  /// Wakes the threads that wait for it.
  void reach() {
    seconds = steady_seconds();
    reached = true;
    reached.notify_all();
  }

  CUstream_st* const stream;
  double seconds = 0;  ///< when it was reached: to be read after `reached`
  std::atomic<bool> reached = false;
  const std::shared_ptr<Capture> capture;  ///< it was marked in; such a point is never reached itself
};

struct Task {
  std::function<void()> work;
  std::shared_ptr<Point> after;    ///< of another stream; the task cannot be done before it is reached
  std::shared_ptr<Point> reaches;  ///< reached when the task is done
  /// `after`, where it is known only when the stream comes to the task.
  std::function<std::shared_ptr<Point>()> after_what = {};

  std::shared_ptr<Point> awaited() const { return after_what ? after_what() : after; }
};

/// Puts `work` behind what is in the stream (null: the default stream, which here is one like others), or
/// into the capture that the stream is in. What it throws is thrown where it is done, and everything that was
/// enqueued anywhere is dropped.
void enqueue(cudaStream_t stream, std::function<void()> work);
/// A point after all that is in the stream now.
std::shared_ptr<Point> mark(cudaStream_t stream);
/// What is enqueued from now on comes after `point`. A stream that waits for a captured one is captured too.
/// Else an error of stream capture, which is then invalid.
cudaError_t wait_for(cudaStream_t stream, const std::shared_ptr<Point>& point);
/// Likewise, for what `point` says when the stream comes to it.
void wait_for_what(cudaStream_t stream, std::function<std::shared_ptr<Point>()> point);
/// Past capture: puts it into the stream itself.
void push(cudaStream_t stream, Task task);
/// Works until the point is reached, or the stream, or all streams are empty.
void run_until(const Point& point);
void run_stream(cudaStream_t stream);
void run_all();
/// Does one task of the stream, if it has any, and what that waits for: what a poll gains.
void run_one(cudaStream_t stream);
/// Does one task of any stream, if there is one that needs not wait: a GPU works while its rank waits for
/// other ranks.
void run_some();
/// Is this the thread that gives streams their work? It also does it. Another one may only wait for events:
/// until the first has come to them.
bool is_working_thread();
bool is_empty(cudaStream_t stream);
bool is_any_busy();
CUstream_st& queue_of(cudaStream_t stream);
void add_stream(cudaStream_t stream);
/// After it is empty.
void remove_stream(cudaStream_t stream);

/// @throws Error if a GPU of compute capability 9.0 would refuse to launch this
void check_launch_shape(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes);
/// cudaFuncAttributeMaxDynamicSharedMemorySize of a kernel. False if it is more than a GPU has.
bool allow_shared(const void* kernel, std::size_t bytes);

}  // namespace llampi::emulator

struct CUstream_st {
  std::deque<llampi::emulator::Task> tasks;
  std::shared_ptr<llampi::emulator::Capture> capture;  ///< null: what is enqueued is done
  unsigned flags = 0;
  int priority = 0;
  bool polled = false;  ///< by the host, and not empty then
};
