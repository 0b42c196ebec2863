// What to tell somebody whose run does not fit: what takes the memory, and what would make it fit. Nothing
// here needs a device: other options are simply compiled.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>

#include "llampi/fsdp/engine.hpp"

namespace llampi::fsdp {

/// The three largest items that are there at the busiest moment of a step: "saved activation 61.25 GiB,
/// exp_avg 3.74 GiB, exp_avg_sq 3.74 GiB".
/// @param arena none: both
std::string largest_items(const CompiledModel& compiled, std::optional<Arena> arena);

/// What CUDA loads on a rank's GPU after a run has opened and checked it: kernels of the step's own shapes,
/// and the libraries' memory for them. 2 to 180 MiB on one H100 (driver 580, CUDA 13.0); 0 on CPUs.
constexpr std::int64_t loaded_later_bytes(comm::Backend backend) {
  return backend == comm::Backend::nccl ? std::int64_t{180} << 20 : 0;
}

struct FitQuestion {
  const model::Model& model;
  const EngineOptions& options;
  const RankGroups& groups;
  const device::OperationSizes& sizes;
  comm::Backend backend = comm::Backend::mpi;
  /// Whether arenas of this size would fit on ranks in these groups.
  std::function<bool(const std::array<std::int64_t, kArenas>& arena_bytes, const RankGroups& groups)> fits;
};

/// The first of these that fits, in the words of a configuration. What changes no numbers but for rounding
/// comes first: a smaller micro-batch, checkpointing of activations, offload of the optimizer, of the
/// parameters, fsdp.strategy = full_shard, and as many of them together as are needed. Then the state in
/// bfloat16, by itself and with all of those: the moments, the master, the gradients (with
/// fsdp.reduce_dtype). Then up to 64 times as many ranks. "it would fit with activation.checkpointing =
/// full"; or that none of them does.
std::string advice_to_fit(const FitQuestion& question);

}  // namespace llampi::fsdp
