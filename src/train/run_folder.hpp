// SPDX-License-Identifier: Apache-2.0
// The folder of a run that is under way, as rank 0 has it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "llampi/core/log.hpp"
#include "llampi/io/posix_file.hpp"
#include "train/event_file.hpp"
#include "train/history.hpp"
#include "train/metrics.hpp"
#include "train/run_lock.hpp"

namespace llampi::train {

/// What a run writes beside what every run writes.
struct MoreFiles {
  bool traces = false;
  bool tensorboard = false;
};

/// Whether a run may write into it. @throws UserError if it is no folder, or if it holds no run but files of the names that one
/// would replace
void check_run_folder(const std::filesystem::path& folder);

/// One job at a time has it: RunLock.
class RunFolder {
 public:
  /// Locks the folder, which is made if it is not there. If this ends before open(), nothing of that is left.
  /// @param patience in seconds: how long another job may keep it
  /// @param waits is called again and again meanwhile; what it throws ends the wait
  /// @throws UserError if another job has it, or as check_run_folder() does
  RunFolder(std::filesystem::path folder, const Log& log, double patience,
            const std::function<void()>& waits = nullptr);

  /// Creates what is missing, deletes what saves of dead jobs have left, and writes config.ini.
  /// @param config the run's, resolved
  /// @param last_step that the run continues from; later lines of metrics.jsonl are dropped
  /// @param fallback_dir checkpoint.fallback_dir: the run's fallback_folders() may have lines of metrics.jsonl
  /// @throws UserError if it cannot be written; config.ini then is as it was
  void open(const std::string& config, MoreFiles more, std::int64_t last_step, const Log& log = {},
            const std::string& fallback_dir = {});
  /// Of a run that is finished: appends the lines of metrics.jsonl that went to a fallback folder with the checkpoint of its
  /// last step. What cannot be written stays where it is, with a warning. Nothing else is changed, and nothing opened.
  void restore_metrics(std::int64_t last_step, const Log& log, const std::string& fallback_dir) const;
  bool is_open() const { return history_ != nullptr; }
  // Once it is open:
  MetricsFile& metrics() { return *metrics_; }
  HistoryFile& history() { return *history_; }
  /// A line of metrics.jsonl, for it and for TensorBoard. @returns why metrics.jsonl does not have it; empty: it does.
  std::string add_metrics(const std::string& line);

 private:
  std::filesystem::path config_file() const { return folder_ / "config.ini"; }
  void keep_metrics_of_lost_steps(const std::filesystem::path& metrics, std::int64_t last_step,
                                  const Log& log) const;
  void open_events(const std::filesystem::path& metrics, const Log& log);
  void write_config(const std::string& config) const;

  std::filesystem::path folder_;
  std::unique_ptr<RunLock> lock_;  ///< null where nothing can be written
  std::unique_ptr<MetricsFile> metrics_;
  std::unique_ptr<EventFile> events_;  ///< null where none is asked for
  std::unique_ptr<HistoryFile> history_;
};

}  // namespace llampi::train
