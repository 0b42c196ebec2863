// SPDX-License-Identifier: Apache-2.0
// What to tell the user if a run does not fit: what takes the memory, and what would make it fit. Nothing
// here needs a device: other options are compiled and compared.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llampi/core/config_error.hpp"
#include "llampi/fsdp/fit_decisions.hpp"

namespace llampi::fsdp {

/// An option of EngineOptions with another value: "batch.sequences", "4".
struct OptionValue {
  std::string field, value;
};

/// What would make a run fit.
struct FittingRun {
  std::vector<OptionValue> changes;                 ///< all of them together; empty: more ranks are enough
  int ranks = 1;                                    ///< on so many, with no more of them on a node
  EngineOptions options;                            ///< with the changes
  std::array<std::int64_t, kArenas> arena_bytes{};  ///< of each rank then
};

/// The first of these that fits. What changes no numbers but for rounding comes first: a smaller micro-batch,
/// fewer and smaller units that are unsharded at the same time, checkpointing of activations (fitting_checkpointing(): of as few blocks as is enough), offload of the optimizer, of the parameters, of residuals, full_shard, and as
/// many of them together as are needed: first of the same strategy, with the optimizer state divided among replicas too if that is needed. Then a frozen base in 8 bits, then the state in bfloat16, by itself and with all of those: the moments,
/// the master, the gradients (with what they are reduced in). Then up to 64 times as many ranks. None if none
/// does.
std::optional<FittingRun> find_fit(const FitQuestion& question);

/// "needs ...; largest buffers: saved activation 1.50 MiB, ...; it would fit with checkpointing = full".
/// @param lack "needs 2 GiB per rank, but a rank has 1 GiB"
/// @param arena whose three largest buffers at the peak of a step are named; none: both
ConfigError does_not_fit(const std::string& lack, const CompiledModel& compiled, std::optional<Arena> arena,
                         const FitQuestion& question);

}  // namespace llampi::fsdp
