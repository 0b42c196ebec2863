// SPDX-License-Identifier: Apache-2.0
// A rank's flight record as a file: RUN_DIR/flight/rank-00003.json.
#pragma once

#include <filesystem>
#include <functional>
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

/// That of this rank, which is written when something is wrong.
class FlightFile {
 public:
  /// @param record must outlive it
  /// @param holds_run_dir WatchdogOptions::holds_run_dir
  FlightFile(const FlightRecord& record, std::filesystem::path run_dir, FlightFileHead head,
             std::function<bool()> holds_run_dir);

  std::string folder() const { return flight_folder(run_dir_).string(); }
  /// True if it was written in time. Nothing is written while the folder may be another job's.
  bool write(const std::string& reason);
  /// If it may be there, and the folder if that is then empty.
  void remove() const;

 private:
  const FlightRecord& record_;
  std::filesystem::path run_dir_;
  FlightFileHead head_;
  std::function<bool()> holds_run_dir_;
  bool begun_ = false;
};

}  // namespace llampi::health
