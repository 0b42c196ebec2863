// SPDX-License-Identifier: Apache-2.0
// What a run is at, as a text file for Prometheus: the textfile collector of node_exporter reads it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "llampi/core/log.hpp"
#include "train/metrics.hpp"

namespace llampi::train {

/// What is known of a run at some moment.
struct Standing {
  StepMetrics step;
  std::int64_t total_steps = 0;
  std::optional<double> eval_loss = {};  ///< of the last evaluation
  std::int64_t saved_step = 0;           ///< of the newest checkpoint; 0: there is none
};

/// In Prometheus' text format, version 0.0.4. @param run value of the label `run`
std::string prometheus_text(const Standing& standing, const std::string& run);

/// The file of log.prometheus. One rank has it.
class PrometheusFile {
 public:
  /// @throws UserError if the folder is missing, or if there is a file that no run of llampi has written
  PrometheusFile(std::filesystem::path file, std::string run, const Log& log);

  /// Replaces the file at once, so that nobody reads a part of it. A failure is told the first time, and changes nothing else.
  void write(const Standing& standing);

 private:
  std::filesystem::path file_;
  std::string run_;
  const Log& log_;
  bool failed_ = false;
};

}  // namespace llampi::train
