// SPDX-License-Identifier: Apache-2.0
// What a run is better told before it has taken its time.
#pragma once

#include <cstdint>

#include "llampi/core/log.hpp"
#include "llampi/data/token_file.hpp"
#include "llampi/fsdp/device_mesh.hpp"
#include "llampi/optim/schedule.hpp"
#include "llampi/train/config.hpp"

namespace llampi::train {

/// Where `first_step` is the only step to do, and trains nothing.
void warn_of_zero_learning_rate(const optim::LearningRateSchedule& schedule, std::int64_t first_step,
                                const Log& log);

/// Where the run ends before the warm-up.
void warn_of_long_warmup(const optim::LearningRateSchedule& schedule, const Log& log);

/// Of files to evaluate on that are trained on.
void warn_of_known_evaluation(const data::TrainingData& train, const std::vector<data::TokenFile>& eval,
                              const Log& log);

/// Where a sample is several packed sequences, and a part of them, at the end of the file, fills none: at least one in a hundred.
void warn_of_rows_left_out(const data::TokenFile& file, std::int64_t seq_len, const Log& log);

/// Of each key that asks for something and changes nothing in this run: one line with the reason.
void warn_of_keys_without_effect(const Config& config, bool on_gpu, const fsdp::DeviceMesh& mesh,
                                 const Log& log);

/// Of checkpoint.every = 0 where more than an hour could be lost.
/// @param step_seconds of a usual step
void warn_of_unsaved_run(const Config& config, double step_seconds, std::int64_t steps_left, const Log& log);

}  // namespace llampi::train
