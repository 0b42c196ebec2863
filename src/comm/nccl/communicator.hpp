// SPDX-License-Identifier: Apache-2.0
// A communicator of NCCL, non-blocking: no call of NCCL holds the host up without a limit.
#pragma once

#include <memory>
#include <string>

#include "comm/nccl/session.hpp"
#include "llampi/core/tensor.hpp"
#include "llampi/device/runtime.hpp"

namespace llampi::comm::nccl {

/// A collective, for messages.
struct CollectiveLabel {
  const char* name = "";
  std::int64_t elements = 0;  ///< of a rank: of the shard, or of the values
  DType dtype = DType::float32;
  device::Stream stream = device::Stream::compute;

  /// "all_gather of 1024 bfloat16 on stream unshard".
  std::string describe() const;
};

class Communicator {
 public:
  /// Collective over the ranks of `id`.
  /// @param membership its label is set here
  /// @param group "the group of ranks 0, 1"
  /// @param parent from which it is split, then without an id; null: it is not
  Communicator(std::shared_ptr<Session> session, Membership membership, const std::string& group, int stream,
               std::shared_ptr<Communicator> parent = nullptr);
  /// Flushes what is in flight and gives NCCL's resources back, once the other ranks do so too. While an
  /// exception unwinds they may never: then it is aborted.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Issues a collective. When this returns, it is in its CUDA stream.
  /// @throws Error if it cannot be, or an earlier one failed
  void issue(const CollectiveLabel& label, const Collective& collective);
  /// @throws Error if a collective failed; `label` is that of one that is not done
  void check(const CollectiveLabel& label);
  const std::string& name() const { return handle_->name; }

 private:
  std::shared_ptr<Session> session_;
  std::shared_ptr<Communicator> parent_;  ///< given back after this one
  std::shared_ptr<Handle> handle_ = std::make_shared<Handle>();
  int exceptions_;
};

}  // namespace llampi::comm::nccl
