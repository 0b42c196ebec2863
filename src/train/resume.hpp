// Where a run starts: from which checkpoint, whether it fits, whether the run is finished already, and where
// its data goes on.
//
// TrainingState::samples_consumed is the place in the sequence of all samples that are drawn: epoch after
// epoch, floor(samples / global_batch) whole batches of each. It grows by global_batch with every step, so it
// is global_batch * step unless the run was resumed with another sequence length, batch or file; then it is
// what a run with the new ones would have drawn on its way to this place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/log.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/train/config.hpp"
#include "llampi/train/train.hpp"
#include "train/inputs.hpp"
#include "train/newest_checkpoint.hpp"

namespace llampi {

/// Batches drawn so far, by samples_consumed. The next step reads batch data_steps() + 1 of the sampler.
std::int64_t data_steps(const TrainingState& state);
/// Epoch of the next batch.
std::int64_t data_epoch(const TrainingState& state);

/// `saved`, going on with the data, the sequence length and the batch of `fresh`: after as many whole epochs,
/// and in the epoch after as many tokens, rounded up to a whole batch.
TrainingState continue_from(const TrainingState& saved, const TrainingState& fresh);

/// Number of the last step of the run that stands at `state`: train.steps, or as many more steps as
/// train.epochs leaves from the place in the data.
std::int64_t total_steps(const Config& config, const TrainingState& state);

/// @throws UserError if the two models' tensors differ in shape, naming the field, both values and both
/// sources; `advice` ends the sentence
void check_same_shapes(const LlamaConfig& run, const std::string& run_source, const LlamaConfig& weights,
                       const std::string& weights_source, const std::string& advice);
/// Likewise if they compute differently in any other way.
void check_same_model(const LlamaConfig& run, const std::string& run_source, const LlamaConfig& weights,
                      const std::string& weights_source, const std::string& advice);

struct Start {
  std::filesystem::path checkpoint = {};  ///< empty: from the beginning
  bool finished = false;                  ///< nothing is left to do after the checkpoint; the log says so
  std::filesystem::path weights = {};     ///< from the beginning: what model.weights names, or "random"
  std::string run_text = {};              ///< the configuration to record: as it really is
};

/// Rank 0 alone looks at files and decides; it logs what was changed since the checkpoint. Collective.
/// @param refused files that are not to be taken; on rank 0 those that cannot be read are added
/// @throws UserError if there is no checkpoint where one must be, or the other way round, if it does not fit,
/// or if there are checkpoints and none of them is whole
Start choose_start(World& world, const Config& config, const ConfigTexts& texts, const Inputs& inputs,
                   std::vector<Refused>& refused, const Log& log);

/// The config.json text in the newest checkpoint of the run's folder, if the run had the same model.config
/// and that is gone, or a folder without a config.json now; empty if not. @throws UserError if the folder
/// cannot be read
std::string model_of_begun_run(const Config& config, const Log& log);

}  // namespace llampi
