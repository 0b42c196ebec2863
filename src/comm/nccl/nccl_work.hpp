// SPDX-License-Identifier: Apache-2.0
// A collective in flight on a GPU's stream.
#pragma once

#include <memory>

#include "comm/nccl/communicator.hpp"
#include "comm/nccl/gpu.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::comm::nccl {

class NcclWork final : public Work {
 public:
  /// What is on the stream of `label` so far.
  /// @param communicator null for a group of one
  NcclWork(Gpu gpu, std::shared_ptr<Session> session, std::shared_ptr<Communicator> communicator,
           const CollectiveLabel& label);
  ~NcclWork() override;

  bool progress() override;
  void wait(device::Stream stream) override;

 private:
  /// False if the patience ends before the collective does.
  bool finish_within(std::chrono::milliseconds patience);

  Gpu gpu_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<Communicator> communicator_;
  CollectiveLabel label_;
  device::Event end_;
  int exceptions_;
  bool done_ = false;
  bool awaited_ = false;  ///< by a stream
};

}  // namespace llampi::comm::nccl
