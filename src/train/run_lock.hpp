// SPDX-License-Identifier: Apache-2.0
// One job at a time has the folder of a run.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "llampi/core/log.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/train/lock_holder.hpp"

namespace llampi::train {

/// FOLDER/history.jsonl is locked as long as this lives, on file systems that have locks. It is only ever appended to, and by the
/// program alone: an editor that saves a file replaces it, and the lock stays on the old one.
class RunLock {
 public:
  /// Makes the folder, and those that it lies in, where they are missing.
  /// @param patience in seconds: how long another job may keep it
  /// @param waits is called again and again meanwhile; what it throws ends the wait
  /// @throws io::FileError if the file cannot be made, UserError if the folder cannot, or if another job has it
  RunLock(std::filesystem::path folder, const Log& log, double patience, const std::function<void()>& waits);
  /// Unless keep() was called, removes the file and the folders that this has made, if nothing is in them.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  void keep() { made_.clear(); }

 private:
  void make();
  void wait(const Log& log, double patience, const std::function<void()>& waits);
  [[noreturn]] void refuse() const;

  std::filesystem::path folder_;
  std::vector<std::filesystem::path> made_;  ///< the file and folders, innermost first
  io::PosixFile file_;
  std::optional<LockHolder> holder_;
};

}  // namespace llampi::train
