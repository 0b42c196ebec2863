// SPDX-License-Identifier: Apache-2.0
// Where the checkpoints of a run are, and which of them stay.
#pragma once

#include <filesystem>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/train/config.hpp"

namespace llampi::train {

/// Where checkpoints go that run.dir has no room for, laid out like a run folder. In checkpoint.fallback_dir
/// each run has its own, named by the whole path of its run.dir. Empty if no fallback_dir is named. Where
/// links lead may look different from other nodes and change while a run lasts, so rank 0 asks at the start,
/// for all. @throws UserError if the path of run.dir cannot be followed
std::filesystem::path fallback_folder(const Config& config);

/// The checkpoints of a run in run.dir and in its fallback_folder(), oldest first; of two of the same step
/// the one in run.dir is the last.
std::vector<std::filesystem::path> run_checkpoints(const Config& config);

/// Which checkpoints stay in run.dir.
checkpoint::Retention retention_of(const Config& config);

}  // namespace llampi::train
