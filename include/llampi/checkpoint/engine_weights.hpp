// SPDX-License-Identifier: Apache-2.0
// An engine's parameters as checkpoints and safetensors have them: their names, their pieces, and how they are filled.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "llampi/checkpoint/adapter.hpp"
#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "llampi/comm/forward.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/model/llama_config.hpp"
#include "llampi/model/lora.hpp"

namespace llampi::checkpoint {

/// Of a model with adapters: these, or all but these, which is their base.
enum class TensorSet : std::uint8_t { all, adapters, base };
/// What checkpoints of this engine hold.
TensorSet stored_tensors(const fsdp::Engine& engine);
/// The parameters as checkpoints and safetensors name them.
std::vector<TensorInfo> tensor_infos(const fsdp::Engine& engine, TensorSet which = TensorSet::all);
/// Those pieces that belong to them, as pieces of tensor_infos(engine, which).
std::vector<TensorPiece> tensor_pieces(const fsdp::Engine& engine,
                                       const std::vector<fsdp::StatePiece>& pieces,
                                       TensorSet which = TensorSet::all);

/// The configuration that belongs to weights: of a Hugging Face folder, or of a checkpoint.
model::LlamaConfig config_of_weights(const std::filesystem::path& weights);

/// Opens a Hugging Face folder or a checkpoint of a whole model.
/// @throws UserError for anything else, also for a checkpoint of adapters alone
std::unique_ptr<WeightsSource> open_weights(const std::filesystem::path& weights,
                                            const model::LlamaConfig& config);

/// Fills the parameters (not the moments) from a Hugging Face folder or a checkpoint. Collective.
/// @param settings for a checkpoint; each rank reads only what it needs
void load_weights(comm::World& world, device::Device& device, const std::filesystem::path& weights,
                  const model::LlamaConfig& config, fsdp::Engine& engine,
                  WeightsReading reading = WeightsReading::each, const LoadSettings& settings = {});

/// Fills the base of an engine with adapters from a Hugging Face folder or a checkpoint. Collective. Returns its checksums.
TensorSums load_base(comm::World& world, device::Device& device, const std::filesystem::path& weights,
                     const model::LlamaConfig& config, fsdp::Engine& engine, WeightsReading reading);
/// Fills the adapters from a file of adapters, which must have the same rank, scaling and linear maps. Collective.
void load_adapters(comm::World& world, device::Device& device, const std::filesystem::path& adapter,
                   const model::LoraConfig& config, fsdp::Engine& engine, WeightsReading reading);

}  // namespace llampi::checkpoint
