// SPDX-License-Identifier: Apache-2.0
// Choices of the device (llampi/device/tuning.hpp) that outlast a run: a run that continues or is repeated makes
// the same, and so has the same bits.
//
// Files are JSON objects: for each GPU (Autotuner::key()) the runs (run_name()), and for each of them which way
// each of its products is computed (AlgorithmChoices).
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "llampi/core/log.hpp"
#include "llampi/device/tuning.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/train/config.hpp"

namespace llampi::train {

using ChoicesByRun = std::map<std::string, device::AlgorithmChoices>;
using TuningCache = std::map<std::string, ChoicesByRun>;  ///< by GPU

/// @throws UserError naming `source` if it is no such text
TuningCache parse_choices(std::string_view text, const std::string& source);
std::string to_json(const TuningCache& choices);

struct KnownChoices {
  device::AlgorithmChoices products;
  bool complete = false;  ///< for all products of the run, so that nothing has to be measured
};
/// Of all that is known for a GPU in several places, the most important first: for each product what the first
/// place has for it. The places behind one that knows this run are not looked at.
KnownChoices known_choices(const std::vector<ChoicesByRun>& places, const std::string& run);

/// In a folder of checkpoints.
inline constexpr const char* kChoicesFile = "tuning.json";

/// The file of the user's cache for such a GPU: below $XDG_CACHE_HOME or, if that is not set, ~/.cache. Empty if
/// there is no home.
std::filesystem::path choices_in_cache(const std::string& gpu);

/// All that its products depend on beside the GPU: a few words for people, and a checksum of the programs that
/// the engine has compiled.
std::string run_name(const Config& config, const fsdp::Engine& engine, int ranks, bool few_labels);

struct ChoiceSources {
  /// Of the checkpoint to continue from, the first that exists; none: it is no run that continues.
  std::vector<std::filesystem::path> files = {};
  TuningMode tuning;  ///< run.tuning
};
/// @param checkpoint to continue from; empty: none
ChoiceSources choice_sources(const Config& config, const std::filesystem::path& checkpoint);

/// Choices of one run on one GPU, to be written beside its checkpoints.
struct TunedRun {
  std::string gpu, run;
  device::AlgorithmChoices products;
};

/// Lets the devices of all ranks make the same choices: those of the checkpoint's folder, of run.tuning = FILE
/// and of the cache, in this order; what these do not have, rank 0 measures in a rehearsal, and the cache then
/// keeps it if it can be written. With run.tuning = off those of the checkpoint's folder alone, and nothing is
/// measured. Before the engine has its state. Collective.
/// @param few_labels whether micro-batches can have tokens without a label: see Engine::rehearse()
/// @return the choices that are made; none where the device has none, or none are known and run.tuning = off
/// @throws UserError if the ranks' GPUs differ (unless off), or run.tuning = FILE cannot be read
TunedRun make_choices(comm::World& world, fsdp::Engine& engine, device::Device& device,
                      const ChoiceSources& sources, const Config& config, bool few_labels, const Log& log);

/// Adds them to the file, which is replaced as a whole. What was in it of other GPUs and runs stays.
/// @throws Error if it cannot be written
void keep_choices(const std::filesystem::path& file, const TunedRun& choices, const Log& log);

/// After a rehearsal or the first step: warns of choices that could not be made any more, and of products whose
/// bits differ.
void report_choices(device::Device& device, const Log& log);

}  // namespace llampi::train
