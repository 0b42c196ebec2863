// SPDX-License-Identifier: Apache-2.0
// The configuration as the engine's options.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "llampi/fsdp/engine.hpp"
#include "llampi/fsdp/fit_decisions.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/optim/schedule.hpp"
#include "llampi/train/config.hpp"

namespace llampi::train {

/// @param micro_batches per rank and step
/// @param backend of the collectives: nccl for GPUs. CPUs compute in float32, GPUs in the dtype that is gathered;
/// fsdp.param_dtype = auto is float32 on the one, bfloat16 on the other
/// @throws UserError for what depends on the model, the device or the number of ranks; the rest is check_together()
fsdp::EngineOptions engine_options(const Config& config, const model::Model& model, int micro_batches,
                                   comm::Backend backend);

/// The products that fsdp.product_dtype asks for.
std::optional<model::Fp8Recipe> fp8_recipe(const Config& config);

/// The adapters that lora.rank asks for; none: all of the model is trained.
std::optional<model::LoraConfig> lora_config(const Config& config);

/// @param gpu its name; then its compute capability
/// @throws UserError if fsdp.product_dtype = fp8 and it has no such products
void require_fp8_products(const Config& config, const std::string& gpu, int major, int minor);
/// The same of a GPU that is there, with its library.
void require_fp8_products(const Config& config, const device::GpuProperties& gpu);

/// The GPU on which the least can be had.
struct GpuOfRanks {
  std::int64_t memory_bytes = 0;  ///< 0: not known
  int major = 0;  ///< compute capability; deterministic attention of some keeps no dP. 0: not known, it may
};
/// What engine_options() leaves to fsdp::decide_what_fits(): keys that are `auto`, where that has an effect.
fsdp::Undecided undecided_options(const Config& config, comm::Backend backend, const GpuOfRanks& gpu);

/// Of a run of so many steps.
optim::LearningRateSchedule schedule_of(const Config& config, std::int64_t total_steps);

/// True if gradients or parameters are float16 on their way, so that small gradients would vanish unscaled.
bool scales_loss(const Config& config);

}  // namespace llampi::train
