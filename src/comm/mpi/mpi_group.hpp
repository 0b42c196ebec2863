// SPDX-License-Identifier: Apache-2.0
// Collectives on the host's memory, over MPI.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "comm/mpi/endpoints.hpp"
#include "comm/mpi/handles.hpp"
#include "comm/mpi/stream_queue.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::comm {

/// How a group is made.
struct MpiGroupOptions {
  std::vector<int> node_of_rank = {};  ///< of each rank of the world; none: as it is
  std::int64_t max_count = kMaxCount;  ///< largest count to be passed to MPI, to test what long messages take
  std::vector<device::Stream> streams = {};  ///< see World::group()
};

class MpiGroup final : public Group {
 public:
  /// @param members world ranks, in the order of the communicator's
  /// @param communicator of the group; none for a group of one, which makes no call to MPI
  /// @param progress of the world, whose queues the collectives of all groups share
  /// @param levels see two_levels()
  MpiGroup(std::vector<int> members, int rank, const Communicator* communicator,
           std::shared_ptr<Progress> progress, std::shared_ptr<const Levels> levels,
           const MpiGroupOptions& options);

  int size() const override { return static_cast<int>(members_.size()); }
  int rank() const override { return rank_; }
  const std::vector<int>& members() const override { return members_; }

  std::unique_ptr<Work> all_gather(Tensor shard, Tensor whole, device::Stream stream) override;
  std::unique_ptr<Work> reduce_scatter(Tensor whole, Tensor shard, Accumulate accumulate, Tensor workspace,
                                       device::Stream stream) override;
  std::unique_ptr<Work> all_reduce(Tensor values, Tensor result, ReduceOp op, Accumulate accumulate,
                                   Tensor workspace, device::Stream stream) override;

 private:
  Endpoints endpoints(device::Stream stream) const;
  std::unique_ptr<Work> issue_on(device::Stream stream, std::vector<Step> steps);

  std::vector<int> members_;
  int rank_ = 0;
  std::int64_t max_count_ = kMaxCount;
  std::shared_ptr<Progress> progress_;
  std::shared_ptr<const Levels> levels_;
  std::array<std::shared_ptr<Communicator>, device::kStreams> communicators_;  // of its streams: they overlap
};

}  // namespace llampi::comm
