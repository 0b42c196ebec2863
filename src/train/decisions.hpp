// SPDX-License-Identifier: Apache-2.0
// What a run decides when it begins, where its configuration says `auto` and memory tells: recomputation, residuals
// in host memory, the micro-batch, room for attention. A run that goes on keeps what it decided.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "llampi/comm/compute.hpp"
#include "llampi/comm/forward.hpp"
#include "llampi/core/log.hpp"
#include "llampi/device/operation_sizes.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/train/config.hpp"
#include "train/inputs.hpp"

namespace llampi::train {

/// The keys that are decided, where they are `auto`.
inline constexpr const char *kAttentionRoomKey = "run.attention_workspace",
                            *kLogitsRoomKey = "run.logits_workspace",
                            *kCheckpointingKey = "activation.checkpointing",
                            *kOffloadKey = "activation.offload", *kMicroBatchKey = "train.micro_batch";
inline constexpr std::array kDecidedKeys = {kAttentionRoomKey, kLogitsRoomKey, kCheckpointingKey, kOffloadKey,
                                            kMicroBatchKey};

/// Keys with the values that `auto` came to; none of keys that were given.
using Decisions = std::vector<std::pair<std::string, std::string>>;

struct BeginningRun {
  comm::World& world;
  const comm::Compute& compute;
  const Inputs& inputs;
  const Config& config;
  const std::string& text;  ///< the configuration of the checkpoint that the run goes on from; empty: none
  const Log& log;
};
/// Decides it, in `options`, which are those of the configuration: as the checkpoint says if that fits here, else what all
/// ranks have room for. Collective.
Decisions make_decisions(const BeginningRun& run, fsdp::EngineOptions& options);

/// What follows "train.micro_batch = auto: N" in the log of a run that goes on, where that is another number than before;
/// empty where it is the same. @param per_rank sequences of a rank and step
std::string change_of_micro_batch(std::int64_t before, std::int64_t now, std::int64_t per_rank);

/// What follows "run.attention_workspace = auto: N MiB" likewise, where documents of some length are now computed by other
/// kernels. @param before MiB, as is `now`
std::string change_of_attention(device::AttentionShape shape, const model::BatchShape& batch,
                                std::int64_t before, std::int64_t now);

/// The configuration as text, for config.ini and checkpoints, with these values.
std::string with_decisions(std::string run_text, const Decisions& decisions);

}  // namespace llampi::train
