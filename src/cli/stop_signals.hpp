// SPDX-License-Identifier: Apache-2.0
// SIGUSR1, SIGTERM, SIGINT and SIGHUP as requests for a clean stop.
#pragma once

#include <atomic>
#include <thread>

namespace llampi::cli {

/// While it lives, the first of these signals calls request_stop(); a second SIGINT ends the program at once. SIGHUP, of a terminal
/// that is closed, does nothing under nohup. SIGPIPE is ignored from then on: a run outlives the reader of its output.
/// They are blocked in the thread that makes it and in all threads that are started afterwards, and a thread
/// of its own waits for them. No handler ever runs on the stack of a thread that computes: the matrix
/// products of oneDNN 2.6 keep data below the stack pointer, where a handler overwrites it (nine of ten
/// signals ended in a corrupted heap). To be made before MPI and OpenMP start their threads.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  /// Whether one was another than SIGUSR1, after which a launcher may have its own exit status.
  bool were_to_end() const { return were_to_end_; }

 private:
  void wait_for_signals();

  std::atomic<bool> done_{false}, were_to_end_{false};
  std::thread thread_;
};

}  // namespace llampi::cli
