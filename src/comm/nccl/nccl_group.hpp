// SPDX-License-Identifier: Apache-2.0
// Collectives on the GPU's memory, over NCCL. See llampi/comm/nccl.hpp for what is different there.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "comm/levels.hpp"
#include "comm/nccl/communicator.hpp"
#include "comm/nccl/gpu.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/nccl.hpp"

namespace llampi::comm::nccl {

class NcclGroup final : public Group {
 public:
  /// Makes the communicators: collective, and takes a second or more on many GPUs.
  /// @param host the same ranks over MPI, through which they agree on new communicators
  /// @param levels see two_levels()
  /// @param streams see World::group()
  NcclGroup(std::shared_ptr<Session> session, Gpu gpu, std::unique_ptr<Group> host,
            std::shared_ptr<const Levels> levels, const std::vector<device::Stream>& streams,
            const NcclOptions& options);

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
  /// @param label of the collective that this is, or is a part of; the stream is set to the label's
  void issue(const CollectiveLabel& label, Collective collective);
  void exchange(const CollectiveLabel& label, std::int64_t elements, std::vector<Transfer> transfers);
  /// Whether ranks of this group exchange parts, which are summed here.
  bool is_summed_here(DType dtype, ReduceOp op) const;
  /// sum (+)= over ranks of their whole[rank() * stride + i], directly or over two levels.
  /// @param whole over two levels left undefined
  /// @param received where the others' parts arrive, `received_stride` elements apart: those of size() - 1
  void exchange_and_sum(const CollectiveLabel& label, Tensor whole, std::int64_t stride, Tensor sum,
                        Accumulate accumulate, void* received, std::int64_t received_stride);
  void exchange_and_sum_over_levels(const CollectiveLabel& label, Tensor whole, std::int64_t stride,
                                    Tensor sum, Accumulate accumulate, void* received,
                                    std::int64_t received_stride);
  /// sum (+)= over the ranks `from`, this one among them, of their `values`. This rank's go to the ranks `to`.
  void share_and_sum(const CollectiveLabel& label, const std::vector<int>& to, const std::vector<int>& from,
                     Tensor values, Tensor sum, Accumulate accumulate, void* received);
  void scatter_in_tree(const CollectiveLabel& label, Tensor whole, Tensor shard, Accumulate accumulate,
                       Tensor workspace);
  void sum_in_tree(const CollectiveLabel& label, Tensor values, Tensor result, Accumulate accumulate,
                   Tensor workspace);
  /// One piece of it: see all_reduce_piece().
  void sum_piece_in_tree(const CollectiveLabel& label, Tensor values, Tensor result, Accumulate accumulate,
                         Tensor workspace);
  /// Where a reduction ends, on its stream: result (+)= sum, which may lie in the result already.
  void finish(Tensor sum, Tensor result, Accumulate accumulate, device::Stream stream) const;
  /// Of what is on the stream now.
  std::unique_ptr<Work> work(const CollectiveLabel& label);
  /// Null for a group of one.
  const std::shared_ptr<Communicator>& communicator(device::Stream stream) const {
    return communicators_[stream.index()];
  }

  std::shared_ptr<Session> session_;
  Gpu gpu_;
  std::unique_ptr<Group> host_;
  std::shared_ptr<const Levels> levels_;
  Reduction reduction_;
  std::int64_t exchange_bytes_;
  std::array<std::shared_ptr<Communicator>, device::kStreams> communicators_;  ///< of its streams
};

}  // namespace llampi::comm::nccl
