// SPDX-License-Identifier: Apache-2.0
// Where a run starts: from which checkpoint, whether it fits, whether the run is finished already, and where
// its data goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/checkpoint/newest.hpp"
#include "llampi/comm/forward.hpp"
#include "llampi/core/log.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/train/config.hpp"
#include "train/data_position.hpp"
#include "train/inputs.hpp"

namespace llampi::train {

struct Start {
  std::filesystem::path checkpoint = {};  ///< empty: from the beginning
  bool finished = false;                  ///< nothing is left to do after the checkpoint; the log says so
  bool complete = false;                  ///< the same, and it is of the last step, not of a later one
  /// What model.weights names, where it is read: from the beginning, and always of a run that trains adapters; empty: random
  std::filesystem::path weights = {};
  std::filesystem::path adapter = {};  ///< from the beginning: what lora.weights names; empty: random
  /// That the model was trained with so far, from a checkpoint; to keep where the data have none.
  std::string chat_template = {};
  std::string run_text = {};   ///< the configuration to record: as it really is
  std::int64_t step = -1;      ///< of the checkpoint; -1: from the beginning
  std::string placement = {};  ///< the checkpoint's note run.placement: placement_note()

  auto members() {
    return std::tie(checkpoint, finished, complete, weights, adapter, chat_template, run_text, step,
                    placement);
  }
};

/// Rank 0 alone looks at files and decides; it logs what was changed since the checkpoint. Collective.
/// @param refused files that are not to be taken; on rank 0 those that cannot be read are added
/// @throws UserError if there is no checkpoint where one must be, or the other way round, if it does not fit,
/// or if there are checkpoints and none of them is whole
Start choose_start(comm::World& world, const Config& config, const ConfigTexts& texts, const Inputs& inputs,
                   std::vector<checkpoint::Refused>& refused, const Log& log);

/// The config.json text in the newest checkpoint of the run's folder, if the run had the same model.config
/// and that is gone, or a folder without a config.json now; empty if not. @throws UserError if the folder
/// cannot be read
std::string model_of_begun_run(const Config& config, const Log& log);

}  // namespace llampi::train
