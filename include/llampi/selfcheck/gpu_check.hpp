// SPDX-License-Identifier: Apache-2.0
// The check that a run makes of its GPUs before it depends on them.
#pragma once

#include <optional>

#include "llampi/comm/compute.hpp"
#include "llampi/core/log.hpp"
#include "llampi/core/tensor.hpp"
#include "llampi/model/fp8_recipe.hpp"
#include "llampi/model/llama_config.hpp"
#include "llampi/model/lora.hpp"

namespace llampi::selfcheck {

/// What a run computes.
struct GpuCheckOptions {
  DType dtype = DType::bfloat16;
  bool tf32 = false;
  /// Its size of heads is compared, and what it has in addition to Llama: biases, norms of heads, windows. Null: a Llama with
  /// heads of 128.
  const model::LlamaConfig* model = nullptr;
  std::optional<model::Fp8Recipe> fp8 = {};    ///< of the products of blocks
  std::optional<model::LoraConfig> lora = {};  ///< its adapters, of whatever linear maps
};

/// Compares each rank's GPU with its CPU (see device_check.hpp) in what the run computes in, before anything
/// depends on it. Does nothing on CPUs. Collective.
/// @throws CommonError that names the rank, its GPU, what differs and by how much
void check_gpus(comm::World& world, const comm::Compute& compute, const GpuCheckOptions& options,
                const Log& log);

}  // namespace llampi::selfcheck
