// SPDX-License-Identifier: Apache-2.0
// Weights in 8 bits: the scales that all ranks use, the casts of shards, and transposes.
#include <span>

#include "fsdp/runtime/operations.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/optim/adamw.hpp"

namespace llampi::fsdp {
namespace {

namespace op = device::op;

/// The bits of magnitudes order as these do, so that their maximum over ranks is that of the whole weight.
void find_scales(const RankContext& rank, Call& call) {
  const Tensor maxima = call[Slot::fp8_maxima];
  const auto shards = call.all(Slot::input);
  rank.device.run(op::Zero{.destination = maxima});
  std::size_t next = 0;
  for (std::size_t u = 0; u < rank.units.size(); ++u) {
    if (!rank.units[u].fp8) continue;
    const Tensor shard = shards[next++];
    for (const auto& [weight, begin, end] : rank.fp8_pieces[u])
      rank.device.run(
          op::Fp8Maximum{.source = shard.slice(begin, end), .maximum = maxima.slice(weight, weight + 1)});
  }
  reduce_over_shards(rank, call, maxima, comm::ReduceOp::max);
  rank.device.run(op::Fp8Scales{.maxima = maxima, .scales = call[Slot::fp8_scales]});
}

/// Padding is not cast: nobody reads it.
void cast_shard(const RankContext& rank, const Call& call) {
  const Tensor from = call[Slot::input], to = call[Slot::output], maxima = call[Slot::fp8_maxima];
  auto* const scalars = static_cast<optim::StepScalars*>(call[Slot::scalars].data);
  for (const auto& [weight, begin, end] : rank.fp8_pieces[static_cast<std::size_t>(call.action.unit)])
    rank.device.run(op::Fp8Cast{.source = from.slice(begin, end),
                                .maximum = maxima.slice(weight, weight + 1),
                                .values = to.slice(begin, end),
                                .transposed = {},
                                .scale = {},
                                .counts = &scalars->fp8});
}

void transpose(const RankContext& rank, const Call& call) {
  const auto from = call.all(Slot::input), to = call.all(Slot::output);
  for (std::size_t i = 0; i < from.size(); ++i)
    rank.device.run(op::Fp8Transpose{.source = from[i], .transposed = to[i]});
}

}  // namespace

void add_fp8(Operations& operations, const RankContext& rank) {
  operations.add(Op::fp8_scales, [&rank](Call& call) -> std::unique_ptr<comm::Work> {
    find_scales(rank, call);
    return nullptr;
  });
  operations.add(Op::fp8_cast, [&rank](Call& call) -> std::unique_ptr<comm::Work> {
    cast_shard(rank, call);
    return nullptr;
  });
  operations.add(Op::transpose, [&rank](Call& call) -> std::unique_ptr<comm::Work> {
    transpose(rank, call);
    return nullptr;
  });
}

}  // namespace llampi::fsdp
