// SPDX-License-Identifier: Apache-2.0
// The configuration as the engine's options.
#pragma once

#include <cstdint>

#include "llampi/fsdp/engine.hpp"
#include "llampi/fsdp/fit.hpp"
#include "llampi/optim/schedule.hpp"
#include "llampi/train/config.hpp"

namespace llampi::train {

/// @param micro_batches per rank and step
/// @param hardware CPUs compute in float32, GPUs in the dtype that is gathered; fsdp.param_dtype = auto is
/// float32 on the one, bfloat16 on the other
/// @throws UserError for what the table of options could not check
fsdp::EngineOptions engine_options(const Config& config, const model::Model& model, int micro_batches,
                                   Hardware hardware);

/// Whether engine_options() leaves `batch.dp_room` to be decided: run.attention_workspace = auto, where it has
/// an effect.
bool decides_dp_room(const Config& config, Hardware hardware);
/// What it is then: as much as fits, at most an eighth of the GPU's memory (of 80 GiB where that is not known);
/// 0 for GPUs whose deterministic attention keeps nothing. Whole MiB.
std::int64_t automatic_dp_room(const fsdp::FitQuestion& question, std::int64_t gpu_memory_bytes,
                               int gpu_major);

/// Of a run of so many steps.
optim::LearningRateSchedule schedule_of(const Config& config, std::int64_t total_steps);

/// True if gradients or parameters are float16 on their way, so that small gradients would vanish unscaled.
bool scales_loss(const Config& config);

}  // namespace llampi::train
