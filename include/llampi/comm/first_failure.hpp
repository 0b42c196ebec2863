// SPDX-License-Identifier: Apache-2.0
// For work that all ranks do together: one that has failed goes on taking part, and throws in the end.
#pragma once

#include <exception>

#include "llampi/comm/agree.hpp"

namespace llampi::comm {

/// Of several pieces of work on this rank.
class FirstFailure {
 public:
  /// Does nothing after a failure.
  template <class Work>
  void of(const Work& work) {
    if (failure_) return;
    try {
      work();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  explicit operator bool() const { return failure_ != nullptr; }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }
  /// Throws on every rank, as comm::agree() does, if any has failed. Collective.
  void agree(World& world) const {
    comm::agree(world, [this] { rethrow(); });
  }

 private:
  std::exception_ptr failure_;
};

}  // namespace llampi::comm
