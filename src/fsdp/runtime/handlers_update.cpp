// SPDX-License-Identifier: Apache-2.0
// The gradient norm and the optimizer.
#include "fsdp/norm_scalars.hpp"
#include "fsdp/runtime/handlers.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/fsdp/streams.hpp"
#include "llampi/optim/adamw.hpp"

namespace llampi::fsdp {
namespace {

namespace op = device::op;

void add_squares(const RankContext& rank, int unit, Tensor gradient, const NormScalars& norm,
                 device::Stream on) {
  rank.device.run(op::SumSquares{.gradient = gradient,
                                 .ranges = rank.ranges[static_cast<std::size_t>(unit)],
                                 .sum = norm.sum,
                                 .maximum = norm.unit_maxima.slice(unit, unit + 1),
                                 .on = on});
}

/// Those of a unit whose gradient is complete, while others are computed. The first unit of a step begins the sum.
void sum_squares(const RankContext& rank, const Call& call) {
  const Tensor scalars = call[Slot::norm_scalars];
  if (call.access(Slot::norm_scalars) == Access::write)
    rank.device.run(op::Zero{.destination = scalars, .on = call.action.stream});
  add_squares(rank, call.action.unit, call[Slot::gradient], norm_scalars(scalars), call.action.stream);
}

/// Over all ranks that have different parts of the gradient: replicas hold equal ones, unless they divide the optimizer
/// state.
void reduce_over_parts(const RankContext& rank, Call& call, Tensor values) {
  constexpr auto kSum = comm::ReduceOp::sum;
  reduce_values(rank, rank.shards, kReduceStream, call, values, kSum);
  if (!rank.options.shard_optimizer_over_replicas) return;
  reduce_values(rank, rank.replicas, replicas_stream(rank.options.all_reduce_stream, rank.shards.size()),
                call, values, kSum);
}

void compute_norm(const RankContext& rank, Call& call) {
  device::Device& device = rank.device;
  const NormScalars norm = norm_scalars(call[Slot::norm_scalars]);
  if (call.access(Slot::norm_scalars) == Access::write) {  // nobody has begun before
    device.run(op::Zero{.destination = call[Slot::norm_scalars]});
    const auto gradients = call.all(Slot::gradient);
    std::size_t summed = 0;
    for (int u = 0; u < static_cast<int>(rank.units.size()); ++u) {
      if (rank.units[u].frozen) continue;
      require(summed < gradients.size(), "the norm is that of all trained units");
      add_squares(rank, u, gradients[summed++], norm, device::Stream::compute);
    }
  }
  reduce_over_parts(rank, call, norm.sum);
  auto* const scalars = static_cast<optim::StepScalars*>(call[Slot::scalars].data);
  device.run(op::FinishNorm{.sum = norm.sum,
                            .max_norm = rank.options.clip_grad_norm,
                            .loss_scale = &scalars->loss_scale,
                            .scalars = &scalars->update});
}

void update(const RankContext& rank, const Call& call) {
  const device::Stream stream = call.action.stream;
  rank.before_update(stream);
  device::Device& device = stream == device::Stream::host ? rank.host : rank.device;
  const Tensor master = call[Slot::master], shard = call[Slot::output];
  // AdamW leaves out padding, what is frozen, and after an overflow everything: a shard that is made anew has
  // them too.
  if (call.access(Slot::output) == Access::write)
    device.run(op::Cast{.source = master, .destination = shard});
  const optim::AdamWConstants& constants = rank.options.adamw;
  device.run(op::AdamW{.gradient = call[Slot::gradient],
                       .ranges = rank.ranges[static_cast<std::size_t>(call.action.unit)],
                       .beta1 = constants.beta1,
                       .beta2 = constants.beta2,
                       .eps = constants.eps,
                       .scalars = &static_cast<const optim::StepScalars*>(call[Slot::scalars].data)->update,
                       .master = master,
                       .exp_avg = call[Slot::exp_avg],
                       .exp_avg_sq = call[Slot::exp_avg_sq],
                       .shard = shard});
}

}  // namespace

void add_update(HandlerTable& handlers, const RankContext& rank) {
  handlers.add(Op::sum_squares, on_its_stream([&rank](Call& call) { sum_squares(rank, call); }));
  handlers.add(Op::norm, on_its_stream([&rank](Call& call) { compute_norm(rank, call); }));
  handlers.add(Op::update, on_its_stream([&rank](Call& call) { update(rank, call); }));
}

}  // namespace llampi::fsdp
