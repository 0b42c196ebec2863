// SPDX-License-Identifier: Apache-2.0
#include "train/run_folder.hpp"

#include <fstream>
#include <system_error>

#include "llampi/checkpoint/run_folder.hpp"
#include "llampi/core/error.hpp"
#include "llampi/train/run_checkpoints.hpp"
#include "llampi/train/run_text.hpp"
#include "train/spilled_metrics.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

/// Keeps the file that it is, unlike write_whole().
void write_text(const fs::path& file, const std::string& text, std::ios::openmode mode = std::ios::trunc) {
  std::ofstream out(file, std::ios::binary | mode);
  out << text;
  out.close();
  if (!out) throw_user_error("cannot write {}; check the path and its permissions", file.string());
}

/// Training does not depend on it.
void create_trace_folder(const fs::path& folder, const Log& log) try {
  io::create_folder(folder);
} catch (const Error& error) {
  log.warning("there will be no trace: {}", error.what());
}

/// FOLDER/BEGINNING1END, or with the first number after that of which there is no such file.
fs::path free_name(const fs::path& folder, const char* beginning, const char* end) {
  for (int number = 1;; ++number) {
    fs::path name = folder / fmt::format("{}{}{}", beginning, number, end);
    std::error_code ignored;
    if (fs::symlink_status(name, ignored).type() == fs::file_type::not_found) return name;
  }
}

/// A run's folder has its checkpoints, or its config.ini, which has the note of the data that were read. Others may have a folder
/// named checkpoints, too.
void refuse_files_of_others(const fs::path& folder) {
  std::error_code ignored;
  if (!checkpoint::list_checkpoints(folder).empty()) return;
  const fs::path config = folder / "config.ini";
  if (fs::is_regular_file(config, ignored) &&
      !read_run_text(io::read_whole(config)).note("data.train").empty())
    return;
  std::vector<fs::path> files = {config, folder / "metrics.jsonl"};
  // A run whose checkpoints are all in its fallback folder has a history, to which lines are only added.
  if (!fs::exists(folder / "checkpoints", ignored)) files.push_back(folder / "history.jsonl");
  for (const auto& file : files) {
    if (!fs::exists(file, ignored) || fs::is_empty(file, ignored)) continue;
    throw_user_error("run.dir = {} has no run but a {}, which a run would replace; choose another run.dir",
                     folder.string(), file.filename().string());
  }
}

}  // namespace

void check_run_folder(const fs::path& folder) {
  std::error_code ignored;
  if (folder.empty()) throw_user_error("run.dir is empty; name the folder for what the run writes");
  const bool is_there = fs::exists(fs::symlink_status(folder, ignored));  // a link that leads nowhere, too
  if (is_there && !fs::is_directory(folder, ignored))
    throw_user_error("run.dir = {} is not a folder", folder.string());
  refuse_files_of_others(folder);
}

RunFolder::RunFolder(fs::path folder, const Log& log, double patience, const std::function<void()>& waits)
    : folder_(std::move(folder)) {
  check_run_folder(folder_);
  try {
    lock_ = std::make_unique<RunLock>(folder_, log, patience, waits);
  } catch (const io::FileError&) {  // open() says so, if there is anything to run
  }
}

void RunFolder::open(const std::string& config, MoreFiles more, std::int64_t last_step, const Log& log,
                     const std::string& fallback_dir) {
  constexpr auto kAdvice = "; choose another run.dir";
  io::create_folder(folder_ / "checkpoints", kAdvice);
  if (more.traces) create_trace_folder(folder_ / "trace", log);
  if (!lock_) lock_ = std::make_unique<RunLock>(folder_, log, 0, nullptr);  // throws, as it did before
  checkpoint::remove_unfinished_checkpoints(folder_);  // they may take the room that the next one needs
  // Now, and not at the first save after hours.
  const auto probe = folder_ / "checkpoints" / "probe.tmp";
  write_text(probe, "");
  std::error_code ignored;
  fs::remove(probe, ignored);
  const fs::path metrics = folder_ / "metrics.jsonl";
  const auto fallbacks = fallback_folders(folder_, fallback_dir);  // config.ini is still that of the last job
  keep_metrics_of_lost_steps(metrics, last_step, log);
  if (last_step == 0) {
    // Of an earlier run too, to which those that go there now would be added.
    for (const fs::path& fallback : fallbacks) {
      for (const auto& spilled : list_spilled_metrics(fallback))
        fs::rename(spilled.second, free_name(fallback, "metrics-lost-", ".jsonl"), ignored);
    }
  }
  metrics_ = std::make_unique<MetricsFile>(metrics, last_step, log);
  for (auto fallback = fallbacks.rbegin(); fallback != fallbacks.rend(); ++fallback)
    metrics_->restore(*fallback, last_step, log);
  if (more.tensorboard) open_events(metrics, log);
  history_ = std::make_unique<HistoryFile>(folder_ / "history.jsonl");
  write_config(config);
  lock_->keep();
}

/// Keeps the file that it is, and what it holds if there is no room. Nothing is written where nothing changes: the disk may be full.
void RunFolder::write_config(const std::string& config) const {
  write_text(config_file(), "", std::ios::app);
  if (io::read_whole(config_file()) != config)
    io::PosixFile::open_for_writing(config_file()).replace_content(config);
}

void RunFolder::restore_metrics(std::int64_t last_step, const Log& log, const std::string& fallback_dir) const
    try {
  for (const fs::path& fallback : fallback_folders(folder_, fallback_dir)) {
    if (!list_spilled_metrics(fallback).contains(last_step)) continue;
    if (!lock_) throw_user_error("{} cannot be written", folder_.string());
    MetricsFile(folder_ / "metrics.jsonl", last_step, log).restore(fallback, last_step, log);
  }
} catch (const Error& error) {
  log.warning("lines of metrics.jsonl stay in checkpoint.fallback_dir: {}", error.what());
}

/// The lines of steps after `last_step`, if the checkpoints of those are gone: nothing else is left of them.
void RunFolder::keep_metrics_of_lost_steps(const fs::path& metrics, std::int64_t last_step,
                                           const Log& log) const {
  std::error_code error;
  const auto vanished = vanished_checkpoint(folder_);
  if (!vanished || vanished->step <= last_step || !fs::exists(metrics, error) || fs::is_empty(metrics, error))
    return;
  // Otherwise an earlier job has kept them, and ended before it got that far.
  if (last_step > 0 && last_step_in(metrics) < vanished->step) return;
  const fs::path aside = free_name(folder_, "metrics-lost-", ".jsonl");
  if (last_step == 0) {
    fs::rename(metrics, aside, error);  // needs no room
  } else {
    fs::copy_file(metrics, aside, error);
  }
  if (error) throw_user_error("cannot write {}: {}", aside.string(), error.message());
  io::sync_folder_of(aside);
  log.info("the metrics of the run whose newest checkpoint is gone are now in {}", aside.string());
}

/// Training does not depend on them.
void RunFolder::open_events(const fs::path& metrics, const Log& log) try {
  events_ = std::make_unique<EventFile>(folder_ / "tensorboard", metrics);
} catch (const Error& error) {
  log.warning("nothing is written for TensorBoard: {}", error.what());
}

std::string RunFolder::add_metrics(const std::string& line) {
  if (events_) events_->append(line);
  return metrics_->append(line + "\n");
}

}  // namespace llampi::train
