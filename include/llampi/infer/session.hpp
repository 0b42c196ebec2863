// SPDX-License-Identifier: Apache-2.0
// A model with its weights in an engine on a device, for forward passes: what evaluation and generation share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "llampi/comm/compute.hpp"
#include "llampi/comm/forward.hpp"
#include "llampi/core/integers.hpp"
#include "llampi/core/log.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/model/llama.hpp"

namespace llampi::infer {

/// Rows of a pass of generation. Few take as long as one, because reading the weights does; a prompt goes in by so many.
inline constexpr std::int64_t kCpuRows = 16, kGpuRows = 64;
/// The batch of an engine that continues sequences of up to `tokens` tokens.
inline model::BatchShape generation_shape(std::int64_t tokens, std::int64_t rows = kCpuRows) {
  return {.sequences = 1, .seq_len = rows, .context = round_up(tokens, rows) + rows};
}

/// A model for forward passes only, with its weights. Collective.
struct InferenceSession {
  model::LlamaConfig config;
  std::unique_ptr<model::Model> model;
  comm::Compute compute;
  std::unique_ptr<fsdp::Engine> engine;
};
/// @param batch where it is a generation_shape(), GPUs get more rows
/// @param adapter PEFT's folder or a checkpoint of adapters, which are merged into the weights; empty: none
/// @param strategy none: no_shard where the whole model fits on each rank, with a tenth of the memory to spare, and so nothing is
/// gathered; else full_shard
InferenceSession open_for_inference(comm::World& world, const std::filesystem::path& weights,
                                    model::BatchShape batch, const comm::DeviceOptions& options,
                                    const Log& log, const std::filesystem::path& adapter = {},
                                    std::optional<fsdp::Strategy> strategy = {});

/// For a model whose logits are not finite. @param consequence "no token can be chosen" @throws UserError
[[noreturn]] void refuse_logits(const std::string& consequence);

}  // namespace llampi::infer
