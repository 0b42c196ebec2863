// SPDX-License-Identifier: Apache-2.0
// The memory of a placed program, added up by purpose.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llampi/fsdp/program.hpp"

namespace llampi::fsdp {

/// Bytes of all buffers of one purpose in one arena. Transient buffers share memory, so their sums exceed
/// what they need of the arena.
struct PurposeBytes {
  Purpose purpose;
  Arena arena = Arena::device;
  bool persistent = false;  ///< kept for the whole run
  std::int64_t buffers = 0;
  std::int64_t bytes = 0;
};

/// In the order of the buffers.
std::vector<PurposeBytes> bytes_by_purpose(const Program& program);

/// Only what is alive during the action with this index: the persistent ones, and of the others those that
/// then hold something.
std::vector<PurposeBytes> bytes_alive_at(const Program& program, int action);

/// The first action during which the transient buffers hold the most bytes, over all arenas; none without
/// actions.
std::optional<int> peak_action(const Program& program);

/// A table, one line per purpose and the arenas' sizes last.
std::string format_memory(const Program& program);

}  // namespace llampi::fsdp
