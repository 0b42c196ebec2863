// SPDX-License-Identifier: Apache-2.0
#include "train/stopping.hpp"

#include <algorithm>
#include <limits>

#include "llampi/core/clock.hpp"
#include "llampi/train/stop.hpp"

namespace llampi::train {
namespace fs = std::filesystem;

Stopping::Stopping(const fs::path& run_dir, double max_hours, int rank)
    : file_(run_dir / "stop"),
      stopped_file_(run_dir / "stopped"),
      max_seconds_(max_hours * 3600),
      looks_for_file_(rank == 0),
      started_(steady_seconds()) {}

double Stopping::seconds_since_start() const { return steady_seconds() - started_; }

double Stopping::seconds_left() const {
  return max_seconds_ > 0 ? max_seconds_ - seconds_since_start() : std::numeric_limits<double>::infinity();
}

bool Stopping::file_is_there() const {
  std::error_code ignored;
  return looks_for_file_ && fs::exists(file_, ignored);
}

StopVotes Stopping::vote(double seconds_to_go_on) {
  const bool late = max_seconds_ > 0 && seconds_since_start() + seconds_to_go_on > max_seconds_;
  return {.max_hours = late ? 1 : 0, .signal = take_stop_request() ? 1 : 0, .file = file_is_there() ? 1 : 0};
}

bool Stopping::decide(const StopVotes& votes) {
  reason_ = StopReason::none;
  if (votes.max_hours > 0) reason_ = StopReason::max_hours;
  if (votes.signal > 0) reason_ = StopReason::signal;
  if (votes.file > 0) reason_ = StopReason::file;
  return reason_ != StopReason::none;
}

StopVotes StopTally::own(double seconds_to_go_on) {
  StopVotes votes = stopping_.vote(seconds_to_go_on);
  own_signal_ = votes.signal = std::max(own_signal_, votes.signal);
  return votes;
}

bool StopTally::hear(const StopVotes& votes) {
  heard_.max_hours += votes.max_hours;
  heard_.signal += votes.signal;
  heard_.file += votes.file;
  return stops_ = stopping_.decide(heard_);
}

std::string Stopping::text() const {
  if (reason_ == StopReason::max_hours) return "because of run.max_hours";
  if (reason_ == StopReason::file) return "because of the file " + file_.string();
  return "by a signal";
}

void Stopping::remove_file(const Log& log) const {
  std::error_code error;
  if (!looks_for_file_ || !fs::exists(file_, error))
    return;  // a read-only file system refuses to remove what is not there
  fs::remove(file_, error);
  if (error) log.warning("cannot remove {}: {}", file_.string(), error.message());
}

void Stopping::put_file_aside(const Log& log) const {
  std::error_code error;
  if (!looks_for_file_ || !fs::exists(file_, error)) return;
  fs::rename(file_, stopped_file_, error);
  if (error)
    log.warning("cannot rename {} to {}: {}", file_.string(), stopped_file_.string(), error.message());
}

void Stopping::forget_last_stop() const {
  std::error_code ignored;  // of a folder in which nothing can be removed, the run has said so before
  if (looks_for_file_) fs::remove(stopped_file_, ignored);
}

}  // namespace llampi::train
