// SPDX-License-Identifier: Apache-2.0
// The ranks of each node in groups, of which the first acts for all: so that what a rank sends, receives and keeps does not
// grow with the number of ranks.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "llampi/comm/comm.hpp"
#include "llampi/io/block_sums.hpp"

namespace llampi::checkpoint {

/// Groups of each node: `wanted`, or with 0 as many as 256 of the whole job allow, and `most` at most. At least one,
/// and at most one for each of the node's ranks.
int groups_per_node(int wanted, int most, const comm::Topology& topology);

class NodeRanks {
 public:
  /// Collective. @param groups from groups_per_node()
  NodeRanks(comm::World& world, int groups);

  /// Of this rank; rank 0 of it acts for the others.
  comm::World& group() const { return *group_; }
  bool is_first() const { return firsts_ != nullptr; }
  /// The first of all groups, on these alone.
  comm::World& firsts() const { return *firsts_; }

  /// Sums of all ranks on rank 0, nothing on the others. Collective.
  /// @param combine what the first of a group does with the sums of the group before it sends them on
  std::vector<io::RangeSum> gather(
      const std::vector<io::RangeSum>& own,
      const std::function<std::vector<io::RangeSum>(std::vector<io::RangeSum>)>& combine) const;

 private:
  std::unique_ptr<comm::World> group_;
  std::unique_ptr<comm::World> firsts_;  ///< the first of each group; null on other ranks
};

}  // namespace llampi::checkpoint
