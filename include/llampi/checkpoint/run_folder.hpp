// SPDX-License-Identifier: Apache-2.0
// The checkpoints in the folder of a run: their names, and which of them stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

namespace llampi::checkpoint {

/// checkpoints/step-00000100.h5
std::filesystem::path checkpoint_path(const std::filesystem::path& run_dir, std::int64_t step);
/// The step in the name of such a file; nothing for any other name.
std::optional<std::int64_t> checkpoint_step(const std::filesystem::path& file);
/// Complete checkpoints of a run folder, oldest first (by step in the name).
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run_dir);
/// What saves that did not come to their end have left.
std::vector<std::filesystem::path> unfinished_checkpoints(const std::filesystem::path& run_dir);
/// Deletes them. One rank calls it.
void remove_unfinished_checkpoints(const std::filesystem::path& run_dir);

/// Whether a run can continue exactly from this checkpoint: it has the optimizer's state. False for a damaged file.
bool has_optimizer(const std::filesystem::path& file);

/// Which checkpoints stay: these, and always the newest with optimizer state, from which a run can continue.
struct Retention {
  int newest = 3;             ///< so many; at least 1
  std::int64_t every = 0;     ///< and those of steps that this divides; 0: none
  bool weights_only = false;  ///< the next ones have no optimizer state
};
/// Whether each of the checkpoints of these steps stays. @param steps of the oldest first
/// @param has_optimizer of the i-th; nothing: it cannot be read just now, and stays, as it might be the newest with optimizer state
std::vector<bool> stay(const std::vector<std::int64_t>& steps, const Retention& retention,
                       const std::function<std::optional<bool>(std::size_t)>& has_optimizer);
/// The checkpoints in the folder of a run that is at some step. Those of later steps were written by a job that got further: they
/// do not count, and stay until the run replaces them.
struct RunCheckpoints {
  std::filesystem::path run_dir;
  std::int64_t step = 0;  ///< of the newest checkpoint that the run has saved or continued from
  std::vector<std::filesystem::path> damaged = {};  ///< are left where they are, and do not count either
  /// Another folder with older checkpoints of the run, which count as those in run_dir do; empty: there is none.
  std::filesystem::path fallback = {};
};
/// Checkpoints to delete.
std::vector<std::filesystem::path> surplus_checkpoints(const RunCheckpoints& run, const Retention& retention);
/// Deletes them, and what is left unfinished. One rank calls it. @throws UserError if one of them cannot be
/// deleted, once all others are
void prune_checkpoints(const RunCheckpoints& run, const Retention& retention);

}  // namespace llampi::checkpoint
