// SPDX-License-Identifier: Apache-2.0
// What a run that continues is asked to do otherwise than the run that wrote its checkpoint: key by key, and
// what follows from it. docs/resuming.md is the user's side of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/core/log.hpp"
#include "llampi/train/config.hpp"

namespace llampi::train {

/// What a change of a key means for a run that has begun.
enum class Effect : std::uint8_t {
  free,       ///< none on the numbers beyond rounding: speed, memory, places, what is written and when
  curve,      ///< other numbers from here on
  beginning,  ///< none at all: it counts only where a run begins
  length,     ///< the length of the run, and with it the schedule
};

/// Of every key of the configuration; nothing for a key that there is not.
std::optional<Effect> effect_of(const std::string& key);

/// Whether two paths name the same file or folder, which need not be there; a config.json is its folder.
bool same_place(const std::string& one, const std::string& other);

struct Change {
  std::string key, then, now;
  Effect effect = Effect::free;  ///< curve and beginning are refused; `length` is always decided
};

/// A checkpoint, and the run that would continue from it.
struct Continuing {
  const checkpoint::CheckpointSummary& saved;
  const Config& config;
  const ConfigTexts& texts;
  const checkpoint::TrainingState& fresh;
  std::string data;  ///< content of data.train, as describe_content() has it
};

/// Keys whose meaning differs, in alphabetical order. Paths are compared as places, numbers as numbers;
/// data.train by what is in the file; keys that the checkpoint's run did not have yet by their defaults.
/// A checkpoint without a configuration is compared by its state alone.
std::vector<Change> changes_of(const Continuing& run);

/// Logs each change once and, if the learning rate does not go on where it was, both rates.
void report_changes(const Continuing& run, const std::vector<Change>& changes, const Log& log);

/// @param source the checkpoint
/// @throws UserError naming every key whose change bends the curve or cannot take effect, unless
/// run.resume_with_changes
void refuse_changes(const Config& config, const std::vector<Change>& changes, const std::string& source);

/// Note of a run that began from a checkpoint (run.resume = FILE): which, as an absolute path.
inline constexpr const char* kBeganFrom = "run.began_from";
/// The same: the step of that checkpoint.
inline constexpr const char* kBeganAt = "run.began_at";

/// The configuration as it really is: what only counts at the beginning is the checkpoint's.
std::string recorded_text(const Continuing& run);

}  // namespace llampi::train
