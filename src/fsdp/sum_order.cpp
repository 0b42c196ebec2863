// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/sum_order.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "llampi/core/config_error.hpp"

namespace llampi::fsdp {
namespace {

bool is_power_of_two(int count) { return std::has_single_bit(static_cast<unsigned>(count)); }

std::optional<ConfigError::Parts> tree_ranks_problem(int ranks) {
  if (is_power_of_two(ranks)) return {};
  const auto below = std::bit_floor(static_cast<unsigned>(ranks));
  return ConfigError::Parts{
      .field = "sum_order",
      .value = "tree",
      .problem = fmt::format("needs a number of ranks that is a power of two, and there are {}", ranks),
      .remedy = fmt::format("start {} or {} ranks, or use {{sum_order}} = any", below, 2 * below)};
}

}  // namespace

std::int64_t micro_batch_number(const StepShape& step, const DeviceMesh& mesh, int rank, int micro_batch) {
  const std::int64_t ranks = std::int64_t{step.shards} * step.replicas;
  if (step.order == SumOrder::any) return micro_batch * ranks + rank;
  const auto group = std::ranges::find_if(
      mesh.shards, [&](const auto& members) { return std::ranges::find(members, rank) != members.end(); });
  require(group != mesh.shards.end(), "a rank of no group");
  const auto replica = group - mesh.shards.begin();
  const auto shard = std::ranges::find(*group, rank) - group->begin();
  const int together = micro_batches_of_subtree(step.per_rank);
  const std::int64_t subtree = micro_batch / together, within = micro_batch % together;
  const std::int64_t first = subtree * together * ranks;
  if (step.unsharded) return first + (replica * step.shards + shard) * together + within;
  if (step.shards == 1) return first + within * step.replicas + replica;  // replicas add up each micro-batch
  return first + (replica * together + within) * step.shards + shard;
}

std::optional<ConfigError::Parts> sum_order_problem(const StepShape& step, const Precision& precision,
                                                    comm::Backend backend, comm::Reduction reduction) {
  if (step.order == SumOrder::any) return {};
  ConfigError::Parts parts{.field = "sum_order", .value = "tree", .remedy = "use {sum_order} = any"};
  const bool by_nccl = backend == comm::Backend::nccl && reduction == comm::Reduction::nccl;
  if (by_nccl && step.shards * step.replicas > 1) {
    parts.problem = "is not possible with NCCL's own reduction, whose order is unspecified";
    parts.remedy = "use {reduction} = tree, or {sum_order} = any";
    return parts;
  }
  if (auto problem = tree_ranks_problem(step.shards * step.replicas)) return problem;
  if (step.sums_follow_placement) {
    parts.problem = fmt::format(
        "is not possible with this placement: sums are formed inside nodes first, then node by node, and the nodes have {}",
        step.nodes);
    parts.remedy =
        "start the same power of two of consecutive ranks on each node (mpirun --map-by slot, srun --distribution=block), "
        "or use {sum_order} = any";
    return parts;
  }
  for (const auto& [field, dtype] : {std::pair{"precision.reduce", precision.reduce},
                                     {"precision.gradient_shard", precision.gradient_shard}}) {
    if (dtype == DType::float32 || dtype == DType::float64) continue;
    parts.problem = "needs gradients that are summed in float32";
    parts.remedy = fmt::format("use {{{}}} = float32, or {{sum_order}} = any", field);
    return parts;
  }
  return {};
}

void check_tree_ranks(SumOrder order, int ranks) {
  if (order == SumOrder::any) return;
  if (const auto problem = tree_ranks_problem(ranks)) throw ConfigError(*problem);
}

void check_sum_order(const StepShape& step, const Precision& precision, comm::Backend backend,
                     comm::Reduction reduction) {
  if (const auto problem = sum_order_problem(step, precision, backend, reduction))
    throw ConfigError(*problem);
}

}  // namespace llampi::fsdp
