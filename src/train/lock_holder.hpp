// SPDX-License-Identifier: Apache-2.0
// Which job has a run folder, for another one that waits for it: a small file beside the lock.
#pragma once

#include <filesystem>
#include <string>

namespace llampi::train {

/// FOLDER/running.json, there as long as this lives: host, process, job of a scheduler, and since when.
class LockHolder {
 public:
  /// For whoever has just locked the folder. That the file cannot be written is no failure.
  explicit LockHolder(const std::filesystem::path& folder);
  ~LockHolder();
  LockHolder(const LockHolder&) = delete;
  LockHolder& operator=(const LockHolder&) = delete;

 private:
  std::filesystem::path file_;
};

/// " (Slurm job 17, process 4711 on node7, since 2026-11-22T15:00:00Z)" of the job that has the folder
/// now; empty where it is not known, as when it has not written its file yet, or has died since.
std::string describe_lock_holder(const std::filesystem::path& folder);

}  // namespace llampi::train
