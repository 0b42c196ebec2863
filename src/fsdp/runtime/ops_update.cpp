// SPDX-License-Identifier: Apache-2.0
// The gradient norm and the optimizer.
#include <span>

#include "fsdp/norm_scalars.hpp"
#include "fsdp/runtime/operations.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/fsdp/streams.hpp"
#include "llampi/optim/adamw.hpp"

namespace llampi::fsdp {
namespace {

namespace op = device::op;

/// @param maximum int32 [1, 1]: see op::MaxMagnitude
void find_largest(const RankContext& rank, int unit, Tensor gradient, Tensor maximum, device::Stream on) {
  rank.device.run(op::Zero{.destination = maximum, .on = on});
  rank.device.run(op::MaxMagnitude{.gradient = gradient,
                                   .ranges = rank.ranges[static_cast<std::size_t>(unit)],
                                   .maximum = maximum,
                                   .on = on});
}

/// Over all ranks that have different parts of the gradient: replicas hold equal ones, unless they divide the optimizer
/// state.
void reduce_over_parts(const RankContext& rank, Call& call, Tensor values, comm::ReduceOp op) {
  reduce_values(rank, rank.shards, kReduceStream, call, values, op);
  if (!rank.options.shard_optimizer_over_replicas) return;
  reduce_values(rank, rank.replicas, replicas_stream(rank.options.all_reduce_stream, rank.shards.size()),
                call, values, op);
}

void compute_norm(const RankContext& rank, Call& call) {
  device::Device& device = rank.device;
  const NormScalars norm = norm_scalars(call[Slot::norm_scalars]);
  const auto gradients = call.all(Slot::gradient);
  std::vector<int> trained;
  for (int u = 0; u < static_cast<int>(rank.units.size()); ++u) {
    if (!rank.units[u].frozen) trained.push_back(u);
  }
  require(trained.size() == gradients.size(), "the norm is that of all trained units");
  device.run(op::Zero{.destination = norm.limbs});
  device.run(op::Zero{.destination = norm.maximum});
  if (call.access(Slot::norm_scalars) == Access::write) {  // nobody has looked before
    for (std::size_t k = 0; k < trained.size(); ++k) {
      const int u = trained[k];
      find_largest(rank, u, gradients[k], norm.unit_maxima.slice(u, u + 1), device::Stream::compute);
    }
  }
  // Bits of non-negative numbers, so they are their own magnitudes.
  const Tensor of_units{norm.unit_maxima.data, DType::float32, 1, norm.unit_maxima.cols};
  const device::UpdateRange all_units{.begin = 0, .end = of_units.cols};
  device.run(
      op::MaxMagnitude{.gradient = of_units, .ranges = std::span(&all_units, 1), .maximum = norm.maximum});
  reduce_over_parts(rank, call, norm.maximum, comm::ReduceOp::max);
  for (std::size_t k = 0; k < trained.size(); ++k)
    device.run(op::SumSquares{.gradient = gradients[k],
                              .ranges = rank.ranges[trained[k]],
                              .maximum = norm.maximum,
                              .limbs = norm.limbs});
  reduce_over_parts(rank, call, norm.limbs, comm::ReduceOp::sum);
  auto* const scalars = static_cast<optim::StepScalars*>(call[Slot::scalars].data);
  device.run(op::FinishNorm{.maximum = norm.maximum,
                            .limbs = norm.limbs,
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

void add_update(Operations& operations, const RankContext& rank) {
  operations.add(Op::largest, [&rank](Call& call) -> std::unique_ptr<comm::Work> {
    find_largest(rank, call.action.unit, call[Slot::gradient], call[Slot::norm_scalars], call.action.stream);
    return nullptr;
  });
  operations.add(Op::norm, [&rank](Call& call) -> std::unique_ptr<comm::Work> {
    compute_norm(rank, call);
    return nullptr;
  });
  operations.add(Op::update, [&rank](Call& call) -> std::unique_ptr<comm::Work> {
    update(rank, call);
    return nullptr;
  });
}

}  // namespace llampi::fsdp
