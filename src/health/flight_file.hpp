// SPDX-License-Identifier: Apache-2.0
// A rank's flight record as a file: RUN_DIR/flight/rank-00003.json.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include "llampi/health/flight_record.hpp"

namespace llampi::health {

std::filesystem::path flight_folder(const std::filesystem::path& run_dir);
std::filesystem::path flight_file(const std::filesystem::path& run_dir, int rank);

struct FlightFileHead {
  int rank = 0;
  int ranks = 1;
  std::string host;
  std::string reason;  ///< for which it is written
};

/// One JSON object: rank, ranks, host, pid, written (UTC), reason; `now`: where the rank stands;
/// `operations`: the last ones, the oldest first, with times in seconds before `written`; `captured_step`:
/// those of a step that is replayed whole.
std::string flight_json(const FlightRecord& record, const FlightFileHead& head);

/// Likewise of a job that was told to terminate: terminated-00003.json. It replaces no record of a failure.
std::filesystem::path terminated_file(const std::filesystem::path& run_dir, int rank);

/// That of this rank, which is written when something is wrong.
class FlightFile {
 public:
  /// @param record must outlive it
  /// @param holds_run_dir WatchdogOptions::holds_run_dir
  FlightFile(const FlightRecord& record, std::filesystem::path run_dir, FlightFileHead head,
             std::function<bool()> holds_run_dir);

  std::string folder() const { return flight_folder(run_dir_).string(); }
  /// @param seconds that it may take, since the file may be what hangs
  /// True if it was written in time. Nothing is written while the folder may be another job's.
  bool write(const std::string& reason, double seconds) {
    return write(flight_file(run_dir_, head_.rank), reason, seconds);
  }
  /// Likewise, as terminated_file().
  bool write_terminated(double seconds) {
    return write(terminated_file(run_dir_, head_.rank), "the process was told to terminate", seconds);
  }
  /// What this job may have written, and the folder if that is then empty.
  void remove() const;

 private:
  bool write(const std::filesystem::path& file, const std::string& reason, double seconds);

  const FlightRecord& record_;
  std::filesystem::path run_dir_;
  FlightFileHead head_;
  std::function<bool()> holds_run_dir_;
  std::set<std::filesystem::path> begun_;
};

}  // namespace llampi::health
