// SPDX-License-Identifier: Apache-2.0
// Collectives on the GPU's memory, over NCCL. See llampi/comm/nccl.hpp for what is different there.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "comm/nccl/communicator.hpp"
#include "comm/nccl/gpu.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::comm::nccl {

class NcclGroup final : public Group {
 public:
  /// Makes the communicators: collective, and takes a second or more on many GPUs.
  /// @param host the same ranks over MPI, through which they agree on new communicators
  NcclGroup(std::shared_ptr<Session> session, Gpu gpu, std::unique_ptr<Group> host);

  int size() const override { return host_->size(); }
  int rank() const override { return host_->rank(); }
  const std::vector<int>& members() const override { return host_->members(); }

  std::unique_ptr<Work> all_gather(Tensor shard, Tensor whole, device::Stream stream) override;
  std::unique_ptr<Work> reduce_scatter(Tensor whole, Tensor shard, Accumulate accumulate, Tensor workspace,
                                       device::Stream stream) override;
  std::unique_ptr<Work> all_reduce(Tensor values, Tensor result, ReduceOp op, Accumulate accumulate,
                                   Tensor workspace, device::Stream stream) override;

 private:
  /// Calls NCCL if there is anything to do with other ranks.
  /// @param collective but for what `operation` says
  void issue(const Operation& operation, Collective collective);
  /// Where a reduction ends, on its stream: result (+)= sum, which may lie in the result already.
  void finish(Tensor sum, Tensor result, Accumulate accumulate, device::Stream stream) const;
  /// Of what is on the stream now.
  std::unique_ptr<Work> work(const Operation& operation);
  /// Null for a group of one.
  const std::shared_ptr<Communicator>& communicator(device::Stream stream) const {
    return communicators_[stream.index()];
  }

  std::shared_ptr<Session> session_;
  Gpu gpu_;
  std::unique_ptr<Group> host_;
  std::array<std::shared_ptr<Communicator>, device::kStreams> communicators_;  ///< of urgent streams
};

}  // namespace llampi::comm::nccl
