// SPDX-License-Identifier: Apache-2.0
// Checks of checkpoints before a run: there is room for them, and what is saved comes back.
#pragma once

#include <cstdint>
#include <filesystem>

#include "train/preflight/checklist.hpp"
#include "train/run_setup.hpp"

namespace llampi::train {

/// For the next checkpoint, and for all that are kept. Collective. False if not even the next one fits.
/// @param bytes takes those of a checkpoint
bool check_room(Checklist& list, const RunSetup& run, std::int64_t& bytes);
/// Saves the state as the run would, forgets it, loads it, and compares. Collective; the state is what it was, unless this fails.
/// False if it could not be saved or loaded.
/// @param file where nothing is yet; its folder is made @param figures has checkpoint_bytes, and takes the seconds
bool check_round_trip(Checklist& list, const RunSetup& run, const std::filesystem::path& file,
                      PreflightFigures& figures);

/// Whether a run that is at `step` saves at a multiple of `every` before the last step.
bool saves_before_the_end(std::int64_t every, std::int64_t step, std::int64_t last);

/// What saving costs a run.
struct SavingTime {
  double save_seconds = 0;  ///< of one checkpoint, as the run saves it
  double step_seconds = 0;
  std::int64_t every = 0;      ///< steps between two checkpoints
  bool in_background = false;  ///< checkpoint.async
};
/// Training that stands still for more than kMostWaiting of the time fails, and so does writing in the background for more than
/// kMostWriting of the time between two checkpoints. Less than kSavingDoesNotMatter seconds never do.
inline constexpr double kMostWaiting = 0.1, kMostWriting = 0.5, kSavingDoesNotMatter = 1;
/// @param folder that of the run
PreflightCheck judge_saving(const SavingTime& time, const std::string& folder);
/// The same of a run, after check_round_trip() and the steps.
void check_saving(Checklist& list, const RunSetup& run, const PreflightFigures& figures);

}  // namespace llampi::train
