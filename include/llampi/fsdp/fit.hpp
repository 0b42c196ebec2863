// What to tell somebody whose run does not fit: what takes the memory, and what would make it fit. Nothing
// here needs a device: other options are simply compiled.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>

#include "llampi/fsdp/engine.hpp"

namespace llampi {

/// The three largest items that are there at the busiest moment of a step: "saved activation 61.25 GiB,
/// exp_avg 3.74 GiB, exp_avg_sq 3.74 GiB".
/// @param arena none: both
std::string largest_items(const CompiledModel& compiled, std::optional<Arena> arena);

struct FitQuestion {
  const Model& model;
  const EngineOptions& options;
  const RankGroups& groups;
  const OperationSizes& sizes;
  Backend backend = Backend::mpi;
  /// Whether arenas of this size would fit on ranks in these groups.
  std::function<bool(const std::array<std::int64_t, kArenas>& arena_bytes, const RankGroups& groups)> fits;
};

/// The first of these that fits, in the words of a configuration: a smaller micro-batch, checkpointing of
/// activations, offload of the optimizer, of the parameters, fsdp.strategy = full_shard, all of them together
/// as far as needed, up to 64 times as many ranks. "it would fit with activation.checkpointing = full"; or
/// that none of them does.
std::string advice_to_fit(const FitQuestion& question);

}  // namespace llampi
