#include "train/stopping.hpp"

#include <limits>

#include "llampi/core/clock.hpp"
#include "llampi/train/stop.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

constexpr int kBits = 20;  // for the number of ranks with a reason: below 2^20

}  // namespace

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

std::int64_t Stopping::vote(double seconds_to_go_on) {
  auto reason = StopReason::none;
  if (max_seconds_ > 0 && seconds_since_start() + seconds_to_go_on > max_seconds_)
    reason = StopReason::max_hours;
  if (take_stop_request()) reason = StopReason::signal;
  if (file_is_there()) reason = StopReason::file;
  return reason == StopReason::none ? 0 : std::int64_t{1} << (kBits * (static_cast<int>(reason) - 1));
}

bool Stopping::decide(std::int64_t votes) {
  reason_ = StopReason::none;
  for (const auto reason : {StopReason::max_hours, StopReason::signal, StopReason::file}) {
    if (votes != 0) reason_ = reason;
    votes >>= kBits;
  }
  return reason_ != StopReason::none;
}

std::string Stopping::text() const {
  if (reason_ == StopReason::max_hours) return "because of run.max_hours";
  if (reason_ == StopReason::file) return "because of the file " + file_.string();
  return "by a signal";
}

void Stopping::remove_file(const Log& log) const {
  std::error_code error;
  if (looks_for_file_) fs::remove(file_, error);
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
