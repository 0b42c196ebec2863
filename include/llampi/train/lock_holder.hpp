// SPDX-License-Identifier: Apache-2.0
// Which job has a run folder: a small file next to the lock, for a job that waits for the folder and for what shows the run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace llampi::train {

/// FOLDER/running.json, there as long as this lives: host, process, job of a scheduler, and since when.
class LockHolder {
 public:
  /// The folder is locked. A file that cannot be written is not an error.
  explicit LockHolder(const std::filesystem::path& folder);
  ~LockHolder();
  LockHolder(const LockHolder&) = delete;
  LockHolder& operator=(const LockHolder&) = delete;

 private:
  std::filesystem::path file_;
};

/// What running.json says.
struct RunningJob {
  std::string scheduler_job;  ///< "Slurm job 17"; empty without a scheduler
  std::int64_t process = 0;
  std::string host;
  std::string since;  ///< "2026-11-22T15:00:00Z"
};
/// "Slurm job 17, process 4711 on node7"
std::string to_string(const RunningJob& job);

/// The job that has the folder. Nothing where it is not known, as when its file is not written yet, or if it was killed: that is
/// seen on its own host only.
std::optional<RunningJob> running_job(const std::filesystem::path& folder);

}  // namespace llampi::train
