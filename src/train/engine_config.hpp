// SPDX-License-Identifier: Apache-2.0
// The configuration as the engine's options.
#pragma once

#include <cstdint>

#include "llampi/fsdp/engine.hpp"
#include "llampi/optim/schedule.hpp"
#include "llampi/train/config.hpp"

namespace llampi::train {

/// @param micro_batches per rank and step
/// @param hardware CPUs compute in float32, GPUs in the dtype that is gathered; fsdp.param_dtype = auto is
/// float32 on the one, bfloat16 on the other
/// @throws UserError for what the table of options could not check
fsdp::EngineOptions engine_options(const Config& config, const model::Model& model, int micro_batches,
                                   Hardware hardware);

/// Of a run of so many steps.
optim::LearningRateSchedule schedule_of(const Config& config, std::int64_t total_steps);

/// True if gradients or parameters are float16 on their way, so that small gradients would vanish unscaled.
bool scales_loss(const Config& config);

}  // namespace llampi::train
