// SPDX-License-Identifier: Apache-2.0
// Checks of checkpoints before a run: there is room for them, and what is saved comes back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/checkpoint/newest.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/train/config.hpp"
#include "train/preflight/checklist.hpp"

namespace llampi::train {

/// A run, as far as its checkpoints are concerned.
struct RunToSave {
  const Config& config;
  fsdp::Engine& engine;
  device::Device& device;
  const checkpoint::TrainingState& state;
  const checkpoint::CheckpointTexts& texts;
};

/// For the next checkpoint, and for all that are kept. Collective. False if not even the next one fits.
/// @param refused checkpoints that are not whole @param bytes takes those of a checkpoint
bool check_room(Checklist& list, const RunToSave& run, const std::vector<checkpoint::Refused>& refused,
                std::int64_t& bytes);
/// Saves the state as the run would, forgets it, loads it, and compares. Collective; the state is what it was, unless this fails.
/// @param file where nothing is yet; its folder is made @param figures has checkpoint_bytes, and takes the seconds
void check_round_trip(Checklist& list, const RunToSave& run, const std::filesystem::path& file,
                      PreflightFigures& figures, const Log& log);

}  // namespace llampi::train
