// SPDX-License-Identifier: Apache-2.0
// Where in its data a run stands, and how many steps it has.
//
// TrainingState::samples_consumed is the place in the sequence of all samples that are drawn: epoch after
// epoch, floor(samples / global_batch) whole batches of each. It grows by global_batch with every step, so it
// is global_batch * step unless the run was resumed with another sequence length, batch or file; then it is
// what a run with the new ones would have drawn on its way to this place.
#pragma once

#include <cstdint>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/train/config.hpp"

namespace llampi::train {

/// Batches drawn so far, by samples_consumed. The next step reads batch data_steps() + 1 of the sampler.
std::int64_t data_steps(const checkpoint::TrainingState& state);
/// Epoch of the next batch.
std::int64_t data_epoch(const checkpoint::TrainingState& state);

/// `saved`, going on with the data, the sequence length and the batch of `fresh`: after as many whole epochs,
/// and in the epoch after as many tokens, rounded up to a whole batch.
checkpoint::TrainingState continue_from(const checkpoint::TrainingState& saved,
                                        const checkpoint::TrainingState& fresh);

/// Number of the last step of the run that stands at `state`: train.steps, or as many more steps as
/// train.epochs leaves from the place in the data.
std::int64_t total_steps(const Config& config, const checkpoint::TrainingState& state);

}  // namespace llampi::train
