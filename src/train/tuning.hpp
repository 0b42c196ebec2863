// SPDX-License-Identifier: Apache-2.0
// Choices of the device (llampi/device/tuning.hpp) that outlast a run: a run that continues or is repeated makes
// the same, and so has the same bits.
//
// Files are JSON objects: `gpu` (Tuning::key()), `products` (Choices), `runs` (shapes of runs all of whose
// products are among them).
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <string_view>

#include "llampi/comm/forward.hpp"
#include "llampi/core/log.hpp"
#include "llampi/device/tuning.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/train/config.hpp"

namespace llampi::train {

struct RememberedChoices {
  std::string gpu;
  device::Choices products = {};
  std::set<std::string> runs = {};

  /// The other's go first.
  void add(const RememberedChoices& other);
};

/// @throws UserError naming `source` if it is no such text
RememberedChoices parse_choices(std::string_view text, const std::string& source);
std::string to_json(const RememberedChoices& choices);

/// In a folder of checkpoints.
inline constexpr const char* kChoicesFile = "tuning.json";

/// The file of the user's cache for such a GPU: below $XDG_CACHE_HOME or, if that is not set, ~/.cache. Empty if
/// there is no home.
std::filesystem::path choices_in_cache(const std::string& gpu);

/// What products depend on beside the GPU, as a text.
std::string run_shape_text(const Config& config, const fsdp::EngineOptions& options,
                           const model::LlamaConfig& model, int ranks);

struct ChoiceSources {
  std::filesystem::path checkpoint;  ///< to continue from; its folder's file goes first. Empty: none
  Tuned tuning;                      ///< run.tuning
  std::string run;                   ///< run_shape_text()
};

/// Lets the devices of all ranks make the same choices: those of the checkpoint's folder, of run.tuning = FILE and
/// of the cache, in this order; if these are not of such a run, what rank 0 measures in a rehearsal, which the
/// cache then keeps if it can be written. Before the engine has its state. Collective.
/// @return the choices that are made; none where the device has none, or run.tuning = off
/// @throws UserError if the ranks' GPUs differ, or run.tuning = FILE cannot be read
RememberedChoices make_choices(comm::World& world, fsdp::Engine& engine, device::Device& device,
                               const ChoiceSources& sources, const Log& log);

/// After the first step: warns of choices that could not be made any more.
void report_misfits(device::Device& device, const Log& log);

}  // namespace llampi::train
