// SPDX-License-Identifier: Apache-2.0
// Which ranks shard a unit among themselves, and which hold the same shard.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "llampi/comm/reduction.hpp"
#include "llampi/core/words.hpp"

namespace llampi::fsdp {

enum class Strategy : std::uint8_t {
  full_shard,  ///< parameters, gradients and optimizer state over all ranks; parameters freed after each use
  shard_grad_op,       ///< likewise, but gathered parameters stay from forward to backward
  no_shard,            ///< every rank keeps everything; gradients are all-reduced (DDP)
  hybrid_shard,        ///< full_shard inside groups, replicas across them
  hybrid_shard_zero2,  ///< shard_grad_op inside groups, replicas across them
};
constexpr auto word_table(Strategy) {
  return std::to_array<Word<Strategy>>({{Strategy::full_shard, "full_shard"},
                                        {Strategy::shard_grad_op, "shard_grad_op"},
                                        {Strategy::no_shard, "no_shard"},
                                        {Strategy::hybrid_shard, "hybrid_shard"},
                                        {Strategy::hybrid_shard_zero2, "hybrid_shard_zero2"}});
}
inline const char* to_string(Strategy strategy) { return word_of(strategy); }
inline bool is_hybrid(Strategy s) { return s == Strategy::hybrid_shard || s == Strategy::hybrid_shard_zero2; }
/// Whether several ranks hold the same shard, if there are enough ranks.
inline bool has_replicas(Strategy s) { return s == Strategy::no_shard || is_hybrid(s); }
inline bool reshards_after_forward(Strategy s) {
  return s == Strategy::full_shard || s == Strategy::hybrid_shard;
}

constexpr int kMostRanks = 65536;  ///< that are planned for

/// Shard groups in order; all have the same size, every rank is in one. Ranks with the same index in their
/// groups are replicas.
struct DeviceMesh {
  std::vector<std::vector<int>> shards;
  /// Whether sums over a group, of shards or of replicas, depend on which ranks share a node: comm::sums_follow_placement().
  bool sums_follow_placement = false;
  /// Whether sums over a group are formed inside each node first, and then between nodes: comm::sums_inside_nodes(). Of shard
  /// groups, and of the replicas of a shard.
  bool shards_sum_inside_nodes = false, replicas_sum_inside_nodes = false;
  std::string nodes = {};  ///< comm::format_nodes(), for messages
  /// The most members of a shard group that share a node, and of the replicas of a shard.
  int shards_on_node = 1, replicas_on_node = 1;
  int ranks_on_node = 1;  ///< the most of all ranks that share a node

  int shard_count() const { return static_cast<int>(shards.front().size()); }
  int replica_count() const { return static_cast<int>(shards.size()); }
  const std::vector<int>& shards_of(int rank) const;
  std::vector<int> replicas_of(int rank) const;
  /// As many replicate groups as a shard group has ranks, in their order.
  std::vector<std::vector<int>> replicas() const;
};

/// @param node_of_rank the node of each rank of the world
/// @param shard_group_size for hybrid strategies: ranks per shard group, consecutive; 0: the ranks of a node
/// @throws UserError if it cannot be done as asked (one group only, a size that does not divide the ranks,
/// uneven nodes): it is never silently weakened
DeviceMesh make_device_mesh(Strategy strategy, const std::vector<int>& node_of_rank, int shard_group_size);

/// "shards 0 1 | 2 3, replicas 0 2 | 1 3"; long lists are cut.
std::string format_groups(const DeviceMesh& mesh);
/// "device mesh 2 x 2: 2 shard groups (0 1 | 2 3), 2 replicate groups (0 2 | 1 3)"; long lists are cut.
std::string describe_mesh(const DeviceMesh& mesh);

}  // namespace llampi::fsdp
