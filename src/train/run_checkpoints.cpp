// SPDX-License-Identifier: Apache-2.0
#include "llampi/train/run_checkpoints.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <system_error>

#include "llampi/checkpoint/newest.hpp"
#include "llampi/checkpoint/run_folder.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/train/run_text.hpp"
#include "train/history.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

/// The same for all names of a file.
fs::path whole_path(const fs::path& path) {
  std::error_code ignored;
  const fs::path absolute = fs::absolute(path, ignored), canonical = fs::weakly_canonical(absolute, ignored);
  return canonical.empty() ? absolute : canonical;
}

/// Of the last job of the run; empty if it had none.
std::string noted_fallback_dir(const fs::path& run_dir) {
  const fs::path config = run_dir / "config.ini";
  return is_file(config) ? read_run_text(io::read_whole(config)).value("checkpoint.fallback_dir") : "";
}

}  // namespace

fs::path fallback_folder(const fs::path& run_dir, const std::string& fallback_dir) {
  if (fallback_dir.empty()) return {};
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(fs::absolute(run_dir, error), error);
  if (error || whole.empty())
    throw_user_error("cannot follow the path run.dir = {}: {}; choose another run.dir", run_dir.string(),
                     error.message());
  return fs::path(fallback_dir) / whole.relative_path();
}

fs::path fallback_folder(const Config& config) {
  return fallback_folder(config.run.dir, config.checkpoint.fallback_dir);
}

std::vector<fs::path> fallback_folders(const fs::path& run_dir, const std::string& fallback_dir) {
  std::vector<fs::path> folders;
  const std::string noted = noted_fallback_dir(run_dir);
  if (!fallback_dir.empty()) folders.push_back(fallback_folder(run_dir, fallback_dir));
  if (!noted.empty() && whole_path(noted) != whole_path(fallback_dir))
    folders.push_back(fallback_folder(run_dir, noted));
  return folders;
}

std::vector<fs::path> run_checkpoints(const fs::path& run_dir, const std::string& fallback_dir) {
  std::vector<fs::path> files;
  std::set<fs::path> known;
  const auto add = [&](const fs::path& file) {
    if (known.insert(whole_path(file)).second) files.push_back(file);
  };
  for (const fs::path& folder : fallback_folders(run_dir, fallback_dir))
    std::ranges::for_each(checkpoint::list_checkpoints(folder), add);
  for (const SavedCheckpoint& saved : saved_checkpoints(run_dir)) {
    if (saved.file.parent_path() == run_dir / "checkpoints") continue;
    if (checkpoint::checkpoint_step(saved.file) == saved.step && is_file(saved.file)) add(saved.file);
  }
  std::ranges::copy(checkpoint::list_checkpoints(run_dir), std::back_inserter(files));
  std::ranges::stable_sort(
      files, {}, [](const fs::path& file) { return checkpoint::checkpoint_step(file).value_or(0); });
  return files;
}

std::vector<fs::path> run_checkpoints(const Config& config) {
  return run_checkpoints(config.run.dir, config.checkpoint.fallback_dir);
}

std::optional<VanishedCheckpoint> vanished_checkpoint(const fs::path& run_dir) {
  const auto saved = saved_checkpoints(run_dir);
  if (saved.empty() || is_file(saved.back().file)) return std::nullopt;
  const auto& [step, file, time] = saved.back();
  return VanishedCheckpoint{step,
                            fmt::format("{} of step {} (saved {})", file.string(), step, utc_time(time))};
}

void warn_if_newest_vanished(const fs::path& run_dir, const fs::path& taken, std::int64_t step,
                             const Log& log) {
  const auto vanished = vanished_checkpoint(run_dir);
  if (vanished && vanished->step > step)
    log.warning("the newest checkpoint of the run in {}, {}, is gone; taking {}", run_dir.string(),
                vanished->text, taken.string());
}

fs::path resolve_weights(const fs::path& weights, const Log& log) {
  std::error_code ignored;
  if (!fs::is_directory(weights, ignored) || !checkpoint::is_run_folder(weights)) return weights;
  if (fs::exists(weights / "config.json", ignored)) {
    if (const auto hidden = run_checkpoints(weights); !hidden.empty())
      log.warning(
          "{} holds a model (config.json) and checkpoints of a run: the model is taken; name the file to take the newest "
          "checkpoint, {}",
          weights.string(), hidden.back().string());
    return weights;
  }
  std::vector<checkpoint::Refused> refused;
  const auto newest = checkpoint::newest_or_none(run_checkpoints(weights), weights.string(), refused, log);
  if (!newest) {
    if (const auto vanished = vanished_checkpoint(weights))
      throw_user_error("the newest checkpoint of the run in {}, {}, is gone, and no other one is left",
                       weights.string(), vanished->text);
    throw_user_error(
        "{} is the folder of a run that has not saved a checkpoint yet; give a checkpoint or a Hugging Face "
        "folder",
        weights.string());
  }
  warn_if_newest_vanished(weights, newest->file, newest->summary.state.step, log);
  log.info("{}: its newest checkpoint is {}", weights.string(), newest->file.string());
  return newest->file;
}

checkpoint::FileSettings file_settings(const Config& config) {
  const auto& options = config.checkpoint;
  return {.io = options.io,
          .moments = options.state_dtype.value_or(config.optimizer.moment_dtype),
          .stripes = options.stripes,
          .stripe_bytes = options.stripe_bytes,
          .writers_per_node = options.writers_per_node};
}

checkpoint::Retention retention_of(const Config& config) {
  return {.newest = config.checkpoint.keep,
          .every = config.checkpoint.keep_every,
          .weights_only = config.checkpoint.content == CheckpointContent::weights};
}

}  // namespace llampi::train
