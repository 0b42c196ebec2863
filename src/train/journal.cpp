// SPDX-License-Identifier: Apache-2.0
#include "train/journal.hpp"

#include <algorithm>
#include <cmath>

#include "llampi/core/clock.hpp"
#include "llampi/core/text.hpp"

namespace llampi::train {

namespace fs = std::filesystem;

namespace {

constexpr double kPrometheusSeconds = 1;  ///< after which its file is old

}  // namespace

void Journal::open_prometheus() {
  if (config_.log.prometheus.empty()) return;
  prometheus_ = std::make_unique<PrometheusFile>(config_.log.prometheus, config_.run.dir, log_);
}

bool Journal::open_folder(const std::string& run_text, const JobStart& start) {
  folder_->open(run_text, {config_.log.trace.has_value(), config_.log.tensorboard}, start.step, log_,
                config_.checkpoint.fallback_dir);
  folder_->history().append(start_json(start, unix_seconds()));
  return folder_->metrics().ends_with_step(start.step);
}

void Journal::restore_metrics(std::int64_t last_step) const {
  folder_->restore_metrics(last_step, log_, config_.checkpoint.fallback_dir);
}

void Journal::begin(std::int64_t start_step, std::int64_t total_steps) {
  start_step_ = start_step;
  standing_.total_steps = total_steps;
  standing_.saved_step = start_step;
}

void Journal::memory(const std::map<std::string, std::int64_t>& used_bytes) {
  if (folder_) folder_->history().append(memory_json(used_bytes, unix_seconds()));
}

void Journal::write(const StepMetrics& metrics) {
  if (folder_) add_metrics(to_json(metrics));
}

void Journal::show(const StepMetrics& m) {
  const std::int64_t total = standing_.total_steps, steps = m.step - start_step_;
  if (steps == 2) step_seconds_ = 0;  // the first step takes longer than those that are left
  step_seconds_ += m.step_seconds;
  standing_.step = m;
  const bool has_line = m.step % config_.log.every == 0 || m.step == total;
  if (m.step == total || !std::isfinite(m.loss) || !std::isfinite(m.grad_norm) ||
      std::abs(m.time - prometheus_step_time_) >= kPrometheusSeconds)
    write_prometheus();
  if (!has_line) return;
  const double average = step_seconds_ / static_cast<double>(std::max<std::int64_t>(1, steps - 1));
  log_.progress("step {:>{}}/{}  loss {:.4f}  lr {:.2e}  grad norm {:.3f}  {} tokens/s  {} left", m.step,
                fmt::formatted_size("{}", total), total, m.loss, m.lr, m.grad_norm,
                with_separators(m.tokens_per_second),
                format_duration(average * static_cast<double>(total - m.step)));
}

void Journal::evaluation(std::int64_t step, double loss, const FileLosses& losses) {
  if (folder_) add_metrics(evaluation_json(step, loss, losses, unix_seconds()));
  standing_.eval_loss = loss;
  write_prometheus();
}

void Journal::saved(const fs::path& file, std::int64_t step, CheckpointContent content, double seconds) {
  if (!folder_) return;
  const fs::path in_folder = file.lexically_relative(config_.run.dir);
  const bool is_there =
      !in_folder.empty() && *in_folder.begin() != "..";  // and not in checkpoint.fallback_dir
  folder_->history().append(checkpoint_json(step, (is_there ? in_folder : fs::absolute(file)).string(),
                                            content, seconds, unix_seconds()));
  standing_.saved_step = step;
  write_prometheus();
}

void Journal::end(const JobEnd& end) {
  if (folder_ && folder_->is_open()) folder_->history().append(end_json(end, unix_seconds()));
}

void Journal::finish() {
  if (!folder_) return;
  try {
    folder_->metrics().sync();
  } catch (const Error& error) {
    log_.warning("{}; its lines that were not saved elsewhere are lost", error.what());
  }
}

/// That a line cannot be written is told once, and again at the next save.
void Journal::add_metrics(const std::string& line) {
  const bool was_written = folder_->metrics().unwritten().empty();
  const std::string problem = folder_->add_metrics(line);
  if (problem.empty() || !was_written) return;
  log_.warning("{}; the lines of {}/metrics.jsonl stay in memory until they can be written", problem,
               config_.run.dir);
}

void Journal::write_prometheus() {
  if (!prometheus_ || standing_.step.step == 0) return;
  prometheus_->write(standing_);
  prometheus_step_time_ = standing_.step.time;
}

}  // namespace llampi::train
