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

/// For a reduction, Levels::rounds times: what each rank of the node has of the parts that go through this rank in the round.
/// Its n-th of them arrives, from rank `place` of the node, at room[place * (parts of the round) + n].
void start_scatter_in_node(const Endpoints& endpoints, Tensor whole, Room room, int round,
                           Requests& requests);
/// The sums of what has arrived, each in its place in `whole`, in its dtype.
void combine_in_node(const Endpoints& endpoints, Tensor whole, Room room, int round, ReduceOp op);
/// And these sums to whose part they are: that of node n arrives at room[n].
void start_scatter_between_nodes(const Endpoints& endpoints, Tensor whole, Room room, Requests& requests);

/// For a gather: `own` to the rank of each other node through which it goes.
void start_gather_between_nodes(const Endpoints& endpoints, Tensor own, void* whole, Requests& requests);
/// What this rank has now, to the others of its node.
void start_gather_in_node(const Endpoints& endpoints, std::int64_t part_bytes, void* whole,
                          Requests& requests);

/// `values` of the ranks of the node, of rank `place` at room[place]; then, where all ranks of a node have the same, those of node n
/// at room[n].
void start_share_in_node(const Endpoints& endpoints, Tensor values, Room room, Requests& requests);
void start_share_between_nodes(const Endpoints& endpoints, Tensor values, Room room, Requests& requests);

}  // namespace llampi::comm
