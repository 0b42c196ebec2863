// SPDX-License-Identifier: Apache-2.0
// Ranks, nodes, groups and collectives. MPI starts every job; a Group is one interface over MPI (on CPUs) and
// NCCL.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "llampi/core/tensor.hpp"
#include "llampi/device/runtime.hpp"

namespace llampi::comm {

/// A collective in flight. Destroying it waits for it, unless a stream already does (wait()), though while an
/// exception unwinds only for a few seconds.
class Work {
 public:
  virtual ~Work() = default;
  /// Advances the collective; true when it is done. MPI moves data only inside calls.
  /// @throws Error if the collective failed, because a rank was lost say
  virtual bool progress() = 0;
  /// What is issued on `stream` from now on starts after the collective. With NCCL the host waits only for Stream::host; with
  /// MPI for all but urgent streams, on which only collectives are.
  virtual void wait(device::Stream stream) = 0;
};

/// Ranks that act together. All members call the same collectives in the same order per stream.
///
/// Collectives on one stream run in the order in which they were issued, over all groups of a World, as on
/// one CUDA stream: a later one may read what an earlier one writes and use the same workspace, also in a
/// group of another size. On different streams they overlap. So a collective can start only when those before
/// it on the stream are done, and ranks that share groups must agree on one order: for each stream there must
/// be a single sequence of the collectives of all groups that every rank issues its part of, in that order.
/// (One program on all ranks that leaves out what a rank is not a member of does this. Three groups of two
/// ranks, AB, BC and CA, where A begins with CA, B with AB and C with BC, hang.)
///
/// Buffers must stay valid and untouched until the work is done.
///
/// Each element is summed in the order of tree_left() (sum_tree.hpp) over the ranks of the group, whichever rank
/// owns it: (r0 + r1) + (r2 + r3) for four. Where a group has several ranks on a node and others elsewhere,
/// the ranks of a node are summed first, in this order, then the sums of the nodes, in the order of the nodes' lowest ranks.
/// That is the same order if each node has the same power of two of consecutive ranks, and for some other placements
/// (sums_follow_placement(), placement.hpp). So each part of a reduction or gather crosses to each other node once. With equally many
/// ranks on nodes, (nodes - 1) / nodes * B of B bytes leave a node, and a rank has as many peers as its node has ranks plus as many as there are nodes. With different numbers of ranks
/// on nodes, a rank of a small node has more peers, because it exchanges with other nodes for a larger share of the parts.
///
/// What is reduced in bfloat16 or float16 travels so, is widened to float32 and summed in float32; the result
/// may be float32, or of the same dtype: then the sum, with what it is added to, is rounded once, to nearest
/// even. So is the sum of a node before it goes to others. With Reduction::nccl NCCL sums in an order of its own, and narrow
/// numbers in their own dtype (see nccl.hpp).
class Group {
 public:
  virtual ~Group() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;  ///< of this process in the group
  /// World ranks of the members, in order.
  virtual const std::vector<int>& members() const = 0;

  /// whole[r] = shard of rank r.   shard [1, n], whole [1, n * size]; shard may lie in its place in whole. Any dtype;
  /// those of 8 bits are gathered only, not reduced.
  virtual std::unique_ptr<Work> all_gather(Tensor shard, Tensor whole, device::Stream stream) = 0;
  /// shard (+)= sum over ranks of their whole[rank()].   whole is left undefined. Any dtype, the same in
  /// both, or float32 in shard where whole is bfloat16 or float16.
  virtual std::unique_ptr<Work> reduce_scatter(Tensor whole, Tensor shard, Accumulate accumulate,
                                               Tensor workspace, device::Stream stream) = 0;
  /// result (+)= sum over ranks of `values`, or their maximum (which does not accumulate). `values` is left
  /// undefined; result may be values (with Accumulate::no, in the same dtype). Any dtype, the same in both,
  /// or float32 in result where values are bfloat16 or float16: the first half of the exchange is then
  /// narrow, the second, of the sums, float32, as also where narrow sums are added.
  virtual std::unique_ptr<Work> all_reduce(Tensor values, Tensor result, ReduceOp op, Accumulate accumulate,
                                           Tensor workspace, device::Stream stream) = 0;
};

struct Topology {
  int nodes = 1;
  int node = 0;         ///< index of this rank's node, in order of each node's lowest rank
  int local_rank = 0;   ///< within the node
  int local_ranks = 1;  ///< of this node
  std::string host;
  bool uniform = true;                  ///< every node has the same number of ranks
  std::vector<int> node_of_rank = {0};  ///< the node of each rank of the world
};

/// Small messages between ranks, independent of all other communication. One thread may use it while
/// another uses the World and its groups, which it must not outlive.
class Channel {
 public:
  struct Message {
    int from = 0;  ///< world rank
    std::string text;
  };
  virtual ~Channel() = default;
  /// Never waits. False if so many messages to that rank are still on their way that this one is dropped.
  virtual bool send(int rank, const std::string& text) = 0;
  /// The next message that has arrived, of any rank; those of one rank in the order in which they were sent.
  virtual std::optional<Message> receive() = 0;
  /// True when nothing that was sent is still on its way.
  virtual bool sent() = 0;
};

/// All ranks of the job. One per process: initialises MPI (MPI_THREAD_MULTIPLE where it exists) and finalises
/// it when it is destroyed in the ordinary way. While an exception unwinds it does not wait for other ranks;
/// call abort() then. Not to be used from two threads at once.
class World {
 public:
  /// Starts MPI, with or without mpirun. As root or oversubscribed it works without the user's setting
  /// variables where the program can do that itself.
  static std::unique_ptr<World> create();
  virtual ~World() = default;

  virtual int size() const = 0;
  virtual int rank() const = 0;
  virtual const Topology& topology() const = 0;
  /// "Open MPI 4.1.4, MPI_THREAD_MULTIPLE".
  virtual std::string describe() const = 0;
  /// Of its groups.
  virtual Backend backend() const { return Backend::mpi; }

  /// A group of these world ranks, this one among them; collective over the members. On the host's memory
  /// through MPI, or on the GPU's through NCCL.
  /// @param streams on which its collectives will be, each with a communicator of its own, and no others; none: any
  virtual std::unique_ptr<Group> group(const std::vector<int>& members,
                                       const std::vector<device::Stream>& streams) = 0;
  std::unique_ptr<Group> group(const std::vector<int>& members) { return group(members, {}); }
  /// Collective. Null, on all ranks, where MPI does not let several threads call it.
  virtual std::unique_ptr<Channel> channel() = 0;
  /// Memory for buffers that travel. Zero-filled, huge pages where possible.
  virtual device::Memory allocate(std::int64_t bytes) = 0;
  /// A world of the same ranks over MPI, for one other thread. Collective. Null where MPI cannot be called by
  /// several threads at once.
  virtual std::unique_ptr<World> duplicate() { return nullptr; }
  /// The ranks that give the same colour, in the order of their ranks here, as a world over MPI for the thread that uses this
  /// one; it does not outlive this one, whose waits() tells of its waits too. Null where the colour is negative.
  /// Collective.
  virtual std::unique_ptr<World> split(int color) = 0;
  /// Its communicator as MPI numbers them (MPI_Comm_c2f), for libraries that call MPI themselves.
  virtual int communicator_number() const = 0;
  /// Whether the thread that uses this world waits for other ranks now. From any thread.
  virtual bool waits() const { return false; }
  /// Call this periodically while the host waits for a device: nothing else notices that a GPU waits for a
  /// lost rank. Cheap. @throws Error if a collective of any group has failed
  virtual void check() {}

  // Small blocking collectives on host values, for set-up and bookkeeping. What they cost a rank does not grow with the
  // number of ranks (but for messages, twice its logarithm), where nothing else is said.
  virtual void barrier() = 0;
  virtual void sum(
      std::span<double> values) = 0;  ///< in the order of tree_left(); costs what all_gather() does
  virtual void sum(std::span<std::int64_t> values) = 0;
  virtual void max(std::span<std::int64_t> values) = 0;
  virtual void max(std::span<double> values) = 0;
  virtual std::string broadcast(const std::string& text, int root) = 0;
  /// Every rank's text, by rank, on every rank: for set-up only, as every rank receives and holds all of them.
  virtual std::vector<std::string> all_gather(const std::string& text) = 0;
  /// Every text of the ranks of this rank's node, by local rank.
  virtual std::vector<std::string> all_gather_on_node(const std::string& text) = 0;
  /// The same on `root` alone; nothing on the others.
  virtual std::vector<std::string> gather(const std::string& text, int root) = 0;

  /// MPI will not be finalised: another library would then touch what it could not give back.
  virtual void leave_mpi_open() = 0;
  /// Starts to combine integers of all ranks: the first `sums` of `values` are summed, of each of the others the
  /// largest is taken. Once the work has been waited for, the result is in `values`, which must live until then.
  /// Between start and wait other collectives may run; all ranks start them in one order.
  virtual std::unique_ptr<Work> start_to_combine(std::span<std::int64_t> values, std::size_t sums) = 0;

  /// Ends the job at once on all ranks with this status (MPI_Abort). From any thread, where there is a
  /// channel.
  [[noreturn]] virtual void abort(int status) = 0;
};

}  // namespace llampi::comm
