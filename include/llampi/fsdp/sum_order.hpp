// SPDX-License-Identifier: Apache-2.0
// In which order the gradients of a step's micro-batches are added, and which of them a rank has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "llampi/comm/forward.hpp"
#include "llampi/comm/reduction.hpp"
#include "llampi/core/config_error.hpp"
#include "llampi/core/words.hpp"
#include "llampi/fsdp/device_mesh.hpp"
#include "llampi/fsdp/storage.hpp"

namespace llampi::fsdp {

enum class SumOrder : std::uint8_t {
  any,   ///< the fastest: last bits depend on the number of ranks and on the strategy
  tree,  ///< order of comm::tree_left() over a step's micro-batches by number, on any distribution over ranks
};
constexpr auto word_table(SumOrder) {
  return std::to_array<Word<SumOrder>>({{SumOrder::any, "any"}, {SumOrder::tree, "tree"}});
}

/// The micro-batches of a step: `per_rank` of each rank.
struct StepShape {
  int per_rank = 1;
  int shards = 1, replicas = 1;  ///< ranks of a shard group, and groups
  bool unsharded = false;        ///< they add up on the rank first: EngineOptions::accumulate_unsharded
  SumOrder order = SumOrder::any;
  bool sums_follow_placement = false;  ///< DeviceMesh::sums_follow_placement
  std::string nodes = {};              ///< DeviceMesh::nodes
};

/// Micro-batches that are added on a rank before ranks are: the largest power of two that divides `per_rank`. So the sum of
/// those of all ranks is a part of the tree, and sums of these are added as they come.
constexpr int micro_batches_of_subtree(int per_rank) { return per_rank & -per_rank; }

/// The number, from 0 on among those of all ranks, of the micro-batch `micro_batch` of a rank: its samples are number *
/// train.micro_batch and those that follow.
/// With SumOrder::any ranks take turns; with SumOrder::tree what is added first stands side by side.
/// @param rank of the world
std::int64_t micro_batch_number(const StepShape& step, const DeviceMesh& mesh, int rank, int micro_batch);

/// @throws UserError if the order is SumOrder::tree and `ranks` is not a power of two
void check_tree_ranks(SumOrder order, int ranks);

/// Why sums in the order of the tree cannot be had so; none: they can. Groups that are not powers of two, gradients that are
/// not summed in float32, ranks of one node whose sums are not part of the tree, or several GPUs with Reduction::nccl, an order
/// of its own.
std::optional<ConfigError::Parts> sum_order_problem(const StepShape& step, const Precision& precision,
                                                    comm::Backend backend, comm::Reduction reduction);
/// @throws UserError if there is such a problem
void check_sum_order(const StepShape& step, const Precision& precision, comm::Backend backend,
                     comm::Reduction reduction);

}  // namespace llampi::fsdp
