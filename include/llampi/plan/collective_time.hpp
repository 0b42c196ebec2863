// SPDX-License-Identifier: Apache-2.0
// How long a collective takes, from figures of the network: pure functions.
//
// The model is Hockney's: a message of b bytes takes latency + b / bandwidth; with it the collectives of MPICH were chosen (Thakur,
// Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH, 2005). Here messages of a phase are
// all started at once (comm/mpi, comm/nccl), so a phase takes the latency once, for each of its messages the time to start it, and
// for its bytes that of the links that carry most.
#pragma once

#include <cstdint>
#include <vector>

namespace llampi::plan {

/// Of a rank, in each direction, while all ranks of its node send and receive.
struct LinkSpeed {
  double bytes_per_second = 0;
  double latency_seconds = 0;
};

struct NetworkSpeed {
  LinkSpeed in_node;
  LinkSpeed
      between_nodes;  ///< of a rank: what the NICs of a node carry together, divided by the most ranks of a node
  /// On a node with fewer ranks than others: each of them has more of the NICs. Otherwise a rank has its own, as with a NIC for each GPU.
  bool ranks_share_nics = true;
  double seconds_per_message = 1e-6;  ///< to start one
  /// Reductions inside a node send each part as a message of its own: comm/nccl. Otherwise all parts for a rank are one message.
  bool sends_parts_apart = false;
  /// Of the links' bandwidth, what messages in both directions at once leave of it. Fitted: bench/smpi.sh, docs/scaling.md.
  double bandwidth_reached = 0.952;
};

/// What limits a phase.
enum class Resource : std::uint8_t {
  own,            ///< nothing that others use
  device,         ///< what computes: kernels of several streams share it
  in_node,        ///< links inside the node
  between_nodes,  ///< NICs
};

/// A part of a collective that must be complete before the next one starts.
struct Phase {
  Resource resource = Resource::own;
  double latency_seconds = 0;  ///< however much else is under way
  double transfer_seconds =
      0;  ///< with the resource to itself; k collectives that share it take k times as long

  double seconds() const { return latency_seconds + transfer_seconds; }
};
using Phases = std::vector<Phase>;
double seconds(const Phases& phases);

/// How a collective of several nodes goes: see comm/levels.
enum class Route : std::uint8_t {
  two_levels,  ///< inside the node, and between nodes from each of them once
  direct,      ///< from each rank to each other one
};

/// Ranks of a group on some nodes.
struct GroupShape {
  int ranks = 1;
  int nodes = 1;
  int largest_node = 0,
      smallest_node = 0;  ///< ranks on the node that has the most, and the fewest; 0: they are spread evenly

  int most_on_a_node() const { return largest_node > 0 ? largest_node : (ranks + nodes - 1) / nodes; }
  int fewest_on_a_node() const { return smallest_node > 0 ? smallest_node : ranks / nodes; }
};
/// @param node_of_rank the node of each rank of the world
GroupShape shape_of(const std::vector<int>& members, const std::vector<int>& node_of_rank);

/// @param whole_bytes of what every rank has in the end, or of what each rank has before its reduction
Phases all_gather_phases(const NetworkSpeed& network, GroupShape group, double whole_bytes, Route route);
/// The gather's phases in reverse. Over two levels, ranks of a node whose size does not divide the group sum in two rounds, each with its
/// own latency: their workspace holds floor(ranks / ranks of the node) parts, and some of them have one more (comm/levels: rounds).
Phases reduce_scatter_phases(const NetworkSpeed& network, GroupShape group, double whole_bytes, Route route);
/// Of a reduction that is done in so many pieces, one after another: each has the latency again.
Phases in_pieces(Phases phases, std::int64_t pieces);
/// A reduce-scatter and an all-gather.
Phases all_reduce_phases(const NetworkSpeed& network, GroupShape group, double whole_bytes, Route route);

}  // namespace llampi::plan
