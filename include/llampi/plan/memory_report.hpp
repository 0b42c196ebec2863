// The memory plan for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llampi/fsdp/memory_plan.hpp"

namespace llampi {

/// Bytes of all buffers of one role. Transient buffers share memory, so their sums exceed what they need of
/// the arena.
struct RoleBytes {
  Role role;
  bool persistent;
  std::int64_t buffers = 0;
  std::int64_t bytes = 0;
};

std::vector<RoleBytes> bytes_by_role(const MemoryPlan& plan);

/// A table, one line per role and the arenas' sizes last.
std::string format_plan(const MemoryPlan& plan);

}  // namespace llampi
