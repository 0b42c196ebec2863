// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl: one JSON object per optimizer step, on disk before the checkpoint of that step gets its
// name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llampi/core/log.hpp"
#include "llampi/device/operations.hpp"
#include "train/growing_file.hpp"

namespace llampi::train {

/// Of the time of a step in which a rank did not wait for others.
struct SlowestRank {
  int rank = 0;
  double seconds = 0;       ///< of this rank
  double mean_seconds = 0;  ///< of all
};

struct StepMetrics {
  std::int64_t step = 0;
  double loss = 0;
  double loss_scale = 0;  ///< float16; 0: none
  double grad_norm = 0;
  double lr = 0;
  std::int64_t tokens = 0;
  std::int64_t tokens_seen = 0;
  double step_seconds = 0;
  double data_seconds = 0;
  double tokens_per_second = 0;
  double tokens_per_second_per_rank = 0;
  double mfu = std::numeric_limits<double>::quiet_NaN();  ///< causal count; unknown on CPUs
  std::int64_t memory_bytes = 0;
  std::int64_t gpu_process_bytes = 0;  ///< -1: not known; 0: on CPUs
  /// Of all ranks' casts to 8 bits; nothing where there are none.
  std::optional<device::Fp8Counts> fp8 = {};
  std::optional<SlowestRank> slowest = {};  ///< on CPUs with several ranks
  double checkpoint_stall_seconds = 0;      ///< since the line before: that training waited for saving
  double time = 0;                          ///< when the step was done: seconds since 1970, UTC
};

/// One line without its end; values that are not finite are null.
std::string to_json(const StepMetrics& metrics);
/// Losses of an evaluation on several files, by their names.
using FileLosses = std::vector<std::pair<std::string, double>>;
/// @param losses empty: it was one file
std::string evaluation_json(std::int64_t step, double eval_loss, const FileLosses& losses, double time);
/// Of the last line of a metrics.jsonl; 0 if there is none. @throws Error if it cannot be read
std::int64_t last_step_in(const std::filesystem::path& metrics);
/// The same, if that line is one of training and not of an evaluation; else -1.
std::int64_t last_trained_step_in(const std::filesystem::path& metrics);

/// Appends lines; each is given to the system at once or, while there is no room, kept in memory. One rank has
/// it.
class MetricsFile {
 public:
  /// Opens FILE and removes lines of steps after `last_step`, and a last line that is torn. Malformed lines before the last
  /// are removed with a warning. @throws Error if it cannot be read or written. What cannot be read stays as it is
  MetricsFile(const std::filesystem::path& file, std::int64_t last_step, const Log& log = {});

  /// Appends the lines up to `last_step` that it lacks and that are in the run's fallback_folder(), and deletes the files there
  /// that are of no more use, once all is on disk. @throws Error as the constructor
  void restore(const std::filesystem::path& fallback, std::int64_t last_step, const Log& log);

  /// Whether the last line was that of a step's training, when the file was opened.
  bool ends_with_step(std::int64_t step) const { return last_trained_ == step; }
  /// As GrowingFile::append().
  std::string append(std::string_view line) { return file_.append(line); }
  /// All lines are on disk when it returns. @throws UserError if there is no room
  void sync() { file_.sync(); }
  /// Lines for which there was no room.
  const std::string& unwritten() const { return file_.unwritten(); }

 private:
  std::int64_t last_trained_ = -1;
  std::filesystem::path path_;
  GrowingFile file_;
};

}  // namespace llampi::train
