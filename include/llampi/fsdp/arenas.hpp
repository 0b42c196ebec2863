// SPDX-License-Identifier: Apache-2.0
// The memory in which programs run.
#pragma once

#include <array>

#include "llampi/comm/forward.hpp"
#include "llampi/fsdp/program.hpp"

namespace llampi::fsdp {

/// This rank's index among those of a group, and their number.
struct MemberIndex {
  int index = 0;
  int count = 1;
};
/// Which parts of buffers are this rank's own.
struct OwnParts {
  MemberIndex shards = {}, replicas = {};
};

class Arenas {
 public:
  /// Collective. Filled with zeros.
  Arenas(comm::World& world, device::Device& device, const ArenaBytes& bytes);

  /// Fills the arenas with zeros again, in order on the device's compute stream.
  void clear(device::Device& device);

  /// A buffer of a placed program.
  Tensor at(const Buffer& buffer) const;
  Tensor at(const Buffer& buffer, const Part& part, const OwnParts& own) const;

  /// Per arena, the end of the farthest memory that has been given to an operation so far: what the program
  /// says is needed, if it is right.
  const ArenaBytes& used() const { return used_; }
  void mark_used(const Buffer& buffer);
  void mark_used(const ArenaBytes& ends);
  static void extend(ArenaBytes& ends, const Buffer& buffer);  ///< to the end of the buffer

 private:
  std::array<device::Memory, kArenas> memory_;
  ArenaBytes used_{};
};

}  // namespace llampi::fsdp
