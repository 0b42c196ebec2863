// SPDX-License-Identifier: Apache-2.0
// history.jsonl: when a run started, saved and ended, one JSON object per line. Unlike metrics.jsonl it is never cut back: it
// also tells of steps that were lost.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "llampi/train/config.hpp"
#include "train/growing_file.hpp"

namespace llampi::train {

/// One job of a run.
struct JobStart {
  std::int64_t step = 0;  ///< that it continues after; 0: from the beginning
  std::int64_t total_steps = 0;
  std::int64_t tokens_per_step = 0;
  std::int64_t parameters = 0;
  int ranks = 1, nodes = 1;
  std::string device = {};
  std::map<std::string, std::int64_t> planned_bytes = {};  ///< per rank, by arena: "device", "host"
  std::map<std::string, std::int64_t> peak_bytes = {};  ///< what is in memory at the step's peak, by purpose
};

struct JobEnd {
  std::int64_t step = 0;
  std::string outcome;  ///< "done", "stopped" or "failed"
  std::string reason =
      {};  ///< "not_finite": the loss or a gradient was; otherwise a text for people, empty if it is done
};

/// Lines without their end.
std::string start_json(const JobStart& start, double time);
std::string memory_json(const std::map<std::string, std::int64_t>& used_bytes, double time);
std::string checkpoint_json(std::int64_t step, const std::string& file, CheckpointContent content,
                            double seconds, double time);
std::string end_json(const JobEnd& end, double time);

/// A checkpoint that the history tells of.
struct SavedCheckpoint {
  std::int64_t step = 0;
  std::filesystem::path file;
  double time = 0;
};
/// Those that the run in this folder has saved since it last began, in that order, whether they are still there or not; none if it
/// has no history.jsonl. @throws Error if that cannot be read
std::vector<SavedCheckpoint> saved_checkpoints(const std::filesystem::path& run_dir);

/// Appends lines. What cannot be written stays in memory: a run does not end because of its history. One rank has it.
class HistoryFile {
 public:
  /// @throws UserError if it cannot be written
  explicit HistoryFile(const std::filesystem::path& file);
  void append(const std::string& line);

 private:
  GrowingFile file_;
};

}  // namespace llampi::train
