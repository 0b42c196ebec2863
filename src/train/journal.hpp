// SPDX-License-Identifier: Apache-2.0
// What a run tells of its steps while it goes on: metrics.jsonl, history.jsonl, TensorBoard's and Prometheus' files, and lines
// on the console.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "llampi/core/log.hpp"
#include "llampi/train/config.hpp"
#include "train/prometheus.hpp"
#include "train/run_folder.hpp"

namespace llampi::train {

/// All ranks have one. Rank 0 gives it the run's folder; without it, files are not written.
class Journal {
 public:
  /// Both outlive it.
  Journal(const Config& config, const Log& log) : config_(config), log_(log) {}

  void keep(std::unique_ptr<RunFolder> folder) { folder_ = std::move(folder); }
  /// Where log.prometheus asks for the file. @throws UserError as PrometheusFile does
  void open_prometheus();
  /// @param run_text for config.ini
  /// @returns whether metrics.jsonl ends with the training of the step that the run continues after
  bool open_folder(const std::string& run_text, const JobStart& start);
  /// Of a run that is finished, in place of open_folder(): RunFolder::restore_metrics().
  void restore_metrics(std::int64_t last_step) const;
  /// Of this job: the step of the checkpoint that it continues from (0: none), and the run's last one.
  void begin(std::int64_t start_step, std::int64_t total_steps);
  /// Null but on rank 0.
  MetricsFile* metrics() { return folder_ ? &folder_->metrics() : nullptr; }

  /// What the engine uses of each kind of memory: "device", "host".
  void memory(const std::map<std::string, std::int64_t>& used_bytes);
  /// To metrics.jsonl, or into memory while that cannot be written.
  void write(const StepMetrics& metrics);
  /// On the console, every log.every steps, and for Prometheus then and where its file gets old. After each step.
  void show(const StepMetrics& metrics);
  /// As write().
  void evaluation(std::int64_t step, double loss, const FileLosses& losses);
  /// A checkpoint has its name.
  void saved(const std::filesystem::path& file, std::int64_t step, CheckpointContent content, double seconds);
  /// All lines of metrics.jsonl are on disk, or a warning tells that they are not.
  void finish();
  void end(const JobEnd& end);

 private:
  void add_metrics(const std::string& line);
  void write_prometheus();

  const Config& config_;
  const Log& log_;
  std::unique_ptr<RunFolder> folder_;           ///< rank 0
  std::unique_ptr<PrometheusFile> prometheus_;  ///< rank 0, where it is asked for
  Standing standing_;
  std::int64_t start_step_ = 0;
  double step_seconds_ = 0;          ///< of the steps of this job, without its first one if there are others
  double prometheus_step_time_ = 0;  ///< when the step was done that its file has
};

}  // namespace llampi::train
