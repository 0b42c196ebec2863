// SPDX-License-Identifier: Apache-2.0
// Where the checkpoints of a run are, which of them is the newest, and which of them stay.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/checkpoint/run_folder.hpp"
#include "llampi/core/log.hpp"
#include "llampi/train/config.hpp"

namespace llampi::train {

/// Where checkpoints go that run.dir has no room for, laid out like a run folder. In checkpoint.fallback_dir
/// each run has its own, named by the whole path of its run.dir. Empty if no fallback_dir is named. Where
/// links lead may look different from other nodes and change while a run lasts, so rank 0 asks at the start,
/// for all. @throws UserError if the path of run.dir cannot be followed
std::filesystem::path fallback_folder(const std::filesystem::path& run_dir, const std::string& fallback_dir);
std::filesystem::path fallback_folder(const Config& config);

/// Those that hold, or may hold, what run.dir had no room for: fallback_folder() of this fallback_dir (empty: none), and of the one that
/// the last job of the run had, as config.ini notes it.
std::vector<std::filesystem::path> fallback_folders(const std::filesystem::path& run_dir,
                                                    const std::string& fallback_dir = {});

/// The checkpoints of a run in run.dir, in its fallback_folders() and where history.jsonl has them, oldest first; of two of the
/// same step the one in run.dir is the last.
std::vector<std::filesystem::path> run_checkpoints(const std::filesystem::path& run_dir,
                                                   const std::string& fallback_dir = {});
std::vector<std::filesystem::path> run_checkpoints(const Config& config);

/// The newest checkpoint that history.jsonl has, if it is no longer there.
struct VanishedCheckpoint {
  std::int64_t step = 0;
  std::string text;  ///< "FILE of step 8 (saved 2026-11-22T15:00:00Z)"
};
std::optional<VanishedCheckpoint> vanished_checkpoint(const std::filesystem::path& run_dir);
/// Where a run, or a user of it, continues from a checkpoint of an earlier step instead.
void warn_if_newest_vanished(const std::filesystem::path& run_dir, const std::filesystem::path& taken,
                             std::int64_t step, const Log& log);

/// What a user means who names weights: the newest checkpoint of a run's folder, which the log names;
/// anything else is taken as it is, also a model in the folder of a run, with a warning. One process calls it.
/// @throws UserError if a run's folder has no checkpoint that can be read
std::filesystem::path resolve_weights(const std::filesystem::path& weights, const Log& log);

/// How checkpoints are written.
checkpoint::FileSettings file_settings(const Config& config);

/// Which checkpoints stay in run.dir.
checkpoint::Retention retention_of(const Config& config);

}  // namespace llampi::train
