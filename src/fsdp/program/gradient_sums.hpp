// SPDX-License-Identifier: Apache-2.0
// Reductions of gradients, and with SumOrder::tree the additions between them.
#pragma once

#include <vector>

#include "fsdp/program/emission.hpp"
#include "fsdp/program/partial_sums.hpp"

namespace llampi::fsdp {

/// A unit's gradient of the micro-batch, or of all so far, to `shard`: a reduce-scatter over the shard group, or where a
/// unit has one shard an all-reduce over its replicas, or a reduce-scatter where these divide the optimizer state.
struct GradientReduction {
  int unit, micro_batch;
  BufferId gradient, shard;
  Accumulate accumulate;  ///< to what is in `shard`
};
/// The index of the action; so below.
int push_reduction(Emission& list, const GradientReduction& reduction);

/// Whether the unit has several shards and several replicas of each, so that sums within the groups are to be joined.
inline bool is_hybrid(const ProgramSpec& spec, int unit) {
  return spec.units[unit].shards > 1 && spec.replicas > 1;
}

/// Hybrid: a sharded gradient is complete within the group. One all-reduce of the shard, in place, joins the groups, or a
/// reduce-scatter: see BufferTable::all_reduced_gradient().
/// @param sum of partial sums
int push_all_reduce(Emission& list, int unit, int micro_batch, int sum, std::vector<int> waits = {});

/// SumOrder::tree. What is added on a rank are the sums of subtrees (see micro_batches_of_subtree()): each micro-batch has a
/// gradient of its own, which is reduced at once, or, with StepOptions::accumulate_unsharded, with those of its subtree.
class GradientSums {
 public:
  explicit GradientSums(Emission& list);

  /// Where the unit's gradient of this micro-batch is written.
  BufferId gradient_of(int unit, int micro_batch);
  /// The unit's gradient of this micro-batch is complete. The reduction after which it has left, if one is due; else -1.
  int end_micro_batch(int unit, int micro_batch);
  /// All micro-batches are: then BufferTable::sharded_gradient() is.
  void end();

 private:
  struct Addition {
    BufferId from, to;
  };
  struct OfUnit {
    PartialSums within;                ///< of the micro-batches of a subtree
    PartialSums between;               ///< of subtrees; where there is no join of groups, of all
    std::vector<Addition> pending;     ///< until the reduction is done
    int written = -1, written_to = 0;  ///< the latest micro-batch, and the buffer of its gradient
    int reduction = -1;                ///< the latest
  };

  int add_micro_batch(int unit, int micro_batch);
  void end_unit(int unit);
  void reduce(int unit, int micro_batch, BufferId gradient, int buffer, Accumulate accumulate);
  /// What is to be added of the sums of subtrees.
  std::vector<Addition> between_subtrees(int unit, const std::vector<PartialSums::Addition>& additions);
  void add_pending(int unit);
  void push_addition(int unit, BufferId from, BufferId to, std::vector<int> waits);

  Emission& list_;
  const ProgramSpec& spec_;
  int together_;  ///< micro-batches of a subtree
  std::vector<OfUnit> units_;
  int last_ = -1;  ///< on GPUs, the unit whose last reduction was issued last: it ends with the next one's
};

}  // namespace llampi::fsdp
