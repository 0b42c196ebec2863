// SPDX-License-Identifier: Apache-2.0
// Where the gradients of a step are written, and when they are reduced: per micro-batch or once, in any order or in that of a tree.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "fsdp/program/emission.hpp"
#include "fsdp/program/gradient_sums.hpp"

namespace llampi::fsdp {

class GradientReductions {
 public:
  explicit GradientReductions(Emission& list) : list_(list), spec_(list.spec), sums_(list) {}

  /// Where a backward pass writes or adds the gradient of a parameter. A gradient that is reduced is unsharded from its first
  /// write to its reduction; one that is not is written where it is kept, and micro-batches add up there.
  /// @param part of the parameter in its unit @param waits takes what the backward pass has to wait for
  Operand operand_of(int unit, int parameter, const Part& part, int micro_batch, std::vector<int>& waits);
  /// The unit's gradient of this micro-batch is complete: reduces it, if that is due.
  void end_micro_batch(int unit, int micro_batch);
  /// All micro-batches are.
  void end();

 private:
  bool in_tree() const { return spec_.options.sum_order == SumOrder::tree; }
  void wait_for_reductions(int unit, std::vector<int>& waits);
  int reduce_in_any_order(int unit, int micro_batch);

  Emission& list_;
  const ProgramSpec& spec_;
  GradientSums sums_;
  std::set<int> live_;                     ///< units whose unsharded gradient is being written
  std::vector<int> pending_;               ///< reductions that nothing has waited for yet
  std::set<std::pair<int, int>> written_;  ///< (parameter, micro-batch)
};

}  // namespace llampi::fsdp
