// SPDX-License-Identifier: Apache-2.0
// The gradient norm and the optimizer.
#include "fsdp/norm_scalars.hpp"
#include "fsdp/runtime/handlers.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/optim/adamw.hpp"

namespace llampi::fsdp {
namespace {

namespace op = device::op;

void sum_squares(const RankContext& rank, const Call& call) {
  const Tensor scalars = call[Slot::norm_scalars];
  if (call.access(Slot::norm_scalars) == Access::write) rank.device.run(op::Zero{.destination = scalars});
  const NormScalars norm = norm_scalars(scalars);
  const int unit = call.action.unit;
  rank.device.run(op::SumSquares{.gradient = call[Slot::gradient],
                                 .ranges = rank.ranges[static_cast<std::size_t>(unit)],
                                 .sum = norm.sum,
                                 .maximum = norm.unit_maxima.slice(unit, unit + 1)});
}

void compute_norm(const RankContext& rank, const Call& call) {
  auto* const scalars = static_cast<optim::StepScalars*>(call[Slot::scalars].data);
  rank.device.run(op::FinishNorm{.sum = norm_scalars(call[Slot::norm_scalars]).sum,
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
  handlers.add(Op::all_reduce_squares, [&rank](Call& call) {
    return all_reduce_values(rank, call, norm_scalars(call[Slot::norm_scalars]).sum, comm::ReduceOp::sum);
  });
  handlers.add(Op::norm, on_its_stream([&rank](Call& call) { compute_norm(rank, call); }));
  handlers.add(Op::update, on_its_stream([&rank](Call& call) { update(rank, call); }));
}

}  // namespace llampi::fsdp
