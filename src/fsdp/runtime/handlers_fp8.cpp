// SPDX-License-Identifier: Apache-2.0
// Weights in 8 bits: the scales that all ranks use, the casts of shards, and transposes.
#include <span>
#include <vector>

#include "fsdp/runtime/handlers.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/optim/adamw.hpp"

namespace llampi::fsdp {
namespace {

namespace op = device::op;

Tensor part_of(const Tensor& whole, const Part& part) {
  Tensor tensor = whole.slice(part.offset, part.offset + part.rows * part.cols);
  tensor.rows = part.rows;
  tensor.cols = part.cols;
  return tensor;
}

/// @param from the piece's elements; maxima: of all weights
void measure(device::Device& device, const Fp8WeightPlace& weight, const Fp8Piece& piece, const Tensor& from,
             const Tensor& maxima) {
  const Tensor of_weight = part_of(maxima, weight.maxima);
  if (weight.in_blocks) {
    device.run(op::Fp8BlockMaximum{.source = from, .first = piece.first, .maxima = of_weight});
  } else {
    device.run(op::Fp8Maximum{.source = from, .maximum = of_weight});
  }
}

/// The bits of magnitudes order as these do, so that their maximum over ranks is that of the whole weight.
void find_maxima(const RankContext& rank, const Call& call) {
  const Tensor maxima = call[Slot::fp8_maxima];
  const auto shards = call.all(Slot::input);
  rank.device.run(op::Zero{.destination = maxima});
  std::size_t next = 0;
  for (std::size_t u = 0; u < rank.units.size(); ++u) {
    if (!rank.units[u].fp8) continue;
    const Tensor shard = shards[next++];
    for (const Fp8Piece& piece : rank.fp8_pieces[u])
      measure(rank.device, rank.fp8_weights[static_cast<std::size_t>(piece.weight)], piece,
              shard.slice(piece.begin, piece.end), maxima);
  }
}

/// Those of weights with one scale each stand side by side.
void write_scales(const RankContext& rank, const Call& call) {
  const Tensor maxima = call[Slot::fp8_maxima], scales = call[Slot::fp8_scales];
  const std::vector<Fp8WeightPlace>& weights = rank.fp8_weights;
  if (!weights.front().in_blocks) {
    const Part all{.offset = 0, .rows = std::ssize(weights), .cols = weights.front().scales.rows};
    rank.device.run(op::Fp8Scales{.maxima = maxima, .scales = part_of(scales, all)});
    return;
  }
  for (const Fp8WeightPlace& weight : weights) {
    rank.device.run(op::Fp8BlockScales{.maxima = part_of(maxima, weight.maxima),
                                       .scales = part_of(scales, weight.scales),
                                       .transposed_scales = part_of(scales, weight.transposed_scales)});
  }
}

/// Padding is not cast: nobody reads it.
void cast_shard(const RankContext& rank, const Call& call) {
  const Tensor from = call[Slot::input], to = call[Slot::output], maxima = call[Slot::fp8_maxima];
  auto* const scalars = static_cast<optim::StepScalars*>(call[Slot::scalars].data);
  for (const Fp8Piece& piece : rank.fp8_pieces[static_cast<std::size_t>(call.action.unit)]) {
    const Fp8WeightPlace& weight = rank.fp8_weights[static_cast<std::size_t>(piece.weight)];
    const Tensor source = from.slice(piece.begin, piece.end), values = to.slice(piece.begin, piece.end);
    const Tensor of_weight = part_of(maxima, weight.maxima);
    if (weight.in_blocks) {
      rank.device.run(op::Fp8BlockCast{.source = source,
                                       .first = piece.first,
                                       .maxima = of_weight,
                                       .values = values,
                                       .counts = &scalars->fp8});
    } else {
      rank.device.run(op::Fp8Cast{.source = source,
                                  .maximum = of_weight,
                                  .values = values,
                                  .transposed = {},
                                  .scale = {},
                                  .counts = &scalars->fp8});
    }
  }
}

void transpose(const RankContext& rank, const Call& call) {
  const auto from = call.all(Slot::input), to = call.all(Slot::output);
  for (std::size_t i = 0; i < from.size(); ++i)
    rank.device.run(op::Fp8Transpose{.source = from[i], .transposed = to[i]});
}

}  // namespace

void add_fp8(HandlerTable& handlers, const RankContext& rank) {
  handlers.add(Op::fp8_maxima, on_its_stream([&rank](Call& call) { find_maxima(rank, call); }));
  handlers.add(Op::all_reduce_maxima, [&rank](Call& call) {
    return all_reduce_values(rank, call, call[Slot::fp8_maxima], comm::ReduceOp::max);
  });
  handlers.add(Op::fp8_scales, on_its_stream([&rank](Call& call) { write_scales(rank, call); }));
  handlers.add(Op::fp8_cast, on_its_stream([&rank](Call& call) { cast_shard(rank, call); }));
  handlers.add(Op::transpose, on_its_stream([&rank](Call& call) { transpose(rank, call); }));
}

}  // namespace llampi::fsdp
