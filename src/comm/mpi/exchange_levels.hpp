// SPDX-License-Identifier: Apache-2.0
// The messages of collectives that go over two levels: see Levels. `whole` is [ranks, part] in every call, its part r that of
// rank r of the group.
#pragma once

#include <cstdint>

#include "comm/mpi/endpoints.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::comm {

/// Room for what other ranks have of a part. At most as many parts as the group has ranks.
struct Room {
  void* data = nullptr;
  std::int64_t bytes = 0;  ///< of a part
};

/// First step of a reduction, in each of Levels::rounds rounds: the ranks of the node send this rank their contributions to the
/// parts that it sums in this round. That of rank `place` of the node to the n-th part arrives at room[place * (parts of the round) + n].
void start_scatter_in_node(const Endpoints& endpoints, Tensor whole, Room room, int round,
                           Requests& requests);
/// Second step: sums what has arrived, each part into its place in `whole`, in the dtype of `whole`.
void combine_in_node(const Endpoints& endpoints, Tensor whole, Room room, int round, ReduceOp op);
/// Third step: sends each sum to the owner of its part. The sum of node n for this rank's part arrives at room[n].
void start_scatter_between_nodes(const Endpoints& endpoints, Tensor whole, Room room, Requests& requests);

/// First step of a gather: sends `own` to one rank of each other node, which passes it on.
void start_gather_between_nodes(const Endpoints& endpoints, Tensor own, void* whole, Requests& requests);
/// Second step: sends the parts that this rank has now to the other ranks of its node.
void start_gather_in_node(const Endpoints& endpoints, std::int64_t part_bytes, void* whole,
                          Requests& requests);

/// `values` of the ranks of the node, of rank `place` at room[place]; then, where all ranks of a node have the same, those of node n
/// at room[n].
void start_share_in_node(const Endpoints& endpoints, Tensor values, Room room, Requests& requests);
void start_share_between_nodes(const Endpoints& endpoints, Tensor values, Room room, Requests& requests);

}  // namespace llampi::comm
