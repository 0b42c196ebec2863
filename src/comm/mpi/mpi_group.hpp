// Collectives on the host's memory, over MPI.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "comm/mpi/handles.hpp"
#include "comm/mpi/lane.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi {

class MpiGroup final : public Group {
 public:
  /// @param members world ranks, in the order of the communicator's
  /// @param communicator of the group; none for a group of one, which makes no call to MPI
  /// @param max_count largest count to be passed to MPI; less than kMaxCount only in tests
  MpiGroup(std::vector<int> members, int rank, const Communicator* communicator,
           std::shared_ptr<Progress> progress, std::int64_t max_count);

  int size() const override { return static_cast<int>(members_.size()); }
  int rank() const override { return rank_; }
  const std::vector<int>& members() const override { return members_; }

  std::unique_ptr<Work> all_gather(Tensor shard, Tensor whole, Stream stream) override;
  std::unique_ptr<Work> reduce_scatter(Tensor whole, Tensor shard, Accumulate accumulate, Tensor workspace,
                                       Stream stream) override;
  std::unique_ptr<Work> all_reduce(Tensor values, Tensor result, ReduceOp op, Accumulate accumulate,
                                   Tensor workspace, Stream stream) override;

 private:
  const std::shared_ptr<Lane>& lane(Stream stream) const { return lanes_[static_cast<std::size_t>(stream)]; }

  std::vector<int> members_;
  int rank_ = 0;
  std::int64_t max_count_ = kMaxCount;
  std::array<std::shared_ptr<Lane>, kStreams> lanes_;
};

}  // namespace llampi
